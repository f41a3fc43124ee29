// Functions of single numbers without branches, so that a compiler makes vectors of them. Those of f32 are off by at most
// two units in the last place, sin and cos up to 2^30; results that are no normal numbers may be zero. Those of f64 are
// the C library's.

// x 2^n for a normal result, n being what the sum of it and 1.5 2^23 has in its lowest bits.
static inline float times_power(float x, float shifted) {
    return bits_i32_f32((int32_t)((uint32_t)bits_f32_i32(x) + ((uint32_t)bits_f32_i32(shifted) << 23)));
}

// e^r for |r| up to ln 2 / 2.
static inline float exp_small(float r) {
    float p = (((0.0013950807f * r + 0.00836907327f) * r + 0.0416662022f) * r + 0.166665167f) * r + 0.5f;
    return p * (r * r) + r + 1;
}

static inline float exp_f32(float x) {
    float shifted = x * 0x1.715476p0f + 0x1.8p23f, n = shifted - 0x1.8p23f;
    float r = x - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f;  // ln 2: of its first part few enough digits to be exact
    float y = times_power(exp_small(r), shifted);
    y = x < -0x1.5d589ep6f ? 0 : y;
    y = x > 0x1.62e42ep6f ? INFINITY : y;
    return x != x ? x : y;
}

static inline float exp2_f32(float x) {
    float shifted = x + 0x1.8p23f, n = shifted - 0x1.8p23f;
    float y = times_power(exp_small((x - n) * 0x1.62e43p-1f), shifted);
    y = x < -126 ? 0 : y;
    y = x >= 128 ? INFINITY : y;
    return x != x ? x : y;
}

// x = (1 + f) 2^n with 1 + f between the roots of 1/2 and 2; what log(1 + f) is beside f.
static inline float log_parts(float x, float *n, float *f) {
    float scaled = x < 0x1p-126f ? x * 0x1p24f : x;
    int32_t bits = (int32_t)((uint32_t)bits_f32_i32(scaled) - 0x3f3504f3u);
    *n = (float)(bits >> 23) - (x < 0x1p-126f ? 24.0f : 0.0f);
    float y = bits_i32_f32((bits & 0x7fffff) + 0x3f3504f3) - 1;
    *f = y;
    float p = ((-0.0763442963f * y + 0.127615497f) * y - 0.131601945f) * y + 0.142017618f;
    p = (((p * y - 0.166233569f) * y + 0.200012267f) * y - 0.250008225f) * y + 0.333333313f;
    return y * y * y * p;
}

static inline float log_special(float x, float log) {
    log = x == 0 ? -INFINITY : x < 0 ? NAN : log;
    return x == INFINITY || x != x ? x : log;
}

static inline float log_f32(float x) {
    float n, f, rest = log_parts(x, &n, &f);
    return log_special(x, (rest + n * 0x1.7f7d1cp-20f) - 0.5f * f * f + f + n * 0x1.62e4p-1f);
}

static inline float log2_f32(float x) {
    float n, f, rest = log_parts(x, &n, &f) - 0.5f * f * f;
    // log2(e) is 1.4427 in two parts: f times the first is exact enough to be added last.
    float low = rest * 0x1.715476p0f + f * 0x1.4ae0bep-26f;
    return log_special(x, low + f * 0x1.715476p0f + n);
}

static inline float with_sign(float size, float x) {
    return bits_i32_f32((bits_f32_i32(size) & 0x7fffffff) | (bits_f32_i32(x) & (int32_t)0x80000000));
}

static inline float tanh_f32(float x) {
    float size = fabsf(x), z = x * x;
    float p = (0.00206466205f * z - 0.00809196476f) * z + 0.0216663443f;
    p = ((p * z - 0.0539405644f) * z + 0.133331582f) * z - 0.333333284f;
    float near = x + x * z * p, far = with_sign(1 - 2 / (exp_f32(size + size) + 1), x);
    far = x != x ? x : far;
    return size < 0.625f ? near : far;
}

static inline float erf_f32(float x) {
    float size = fabsf(x), z = x * x, a = size > 4 ? 4 : size;
    float p = ((8.39691565e-05f * z - 0.000814958476f) * z + 0.00520169502f) * z - 0.0268596932f;
    p = ((p * z + 0.112837017f) * z - 0.376126349f) * z + 0.128379166f;
    float q = ((-2.0909556e-05f * a + 0.000432303001f) * a - 0.00416052714f) * a + 0.0250914972f;
    q = (((q * a - 0.108236618f) * a - 0.633386672f) * a - 1.12949514f) * a + 0.000170552026f;
    float near = x + x * p, far = with_sign(1 - exp_f32(q), x);
    far = x != x ? x : far;
    return size < 0.9f ? near : far;
}

// The sine of x and some quarter turns; what is left of x beside whole quarters is found in f64.
static inline float turned(float x, int64_t quarters) {
    double shifted = x * 0x1.45f306dc9c883p-1 + 0x1.8p52, n = shifted - 0x1.8p52;
    float r = (float)(x - n * 0x1.921fbp0 - n * 0x1.5110b4611a626p-22);  // pi / 2 in two parts
    int32_t turn = (int32_t)(bits_f64_i64(shifted) + quarters);
    float z = r * r;
    float sine = ((2.71756448e-06f * z - 0.000198392561f) * z + 0.00833332911f) * z - 0.166666672f;
    float cosine = (2.44312032e-05f * z - 0.0013887306f) * z + 0.0416666456f;
    sine = r + r * z * sine;
    cosine = 1 - 0.5f * z + z * z * cosine;
    float y = turn & 1 ? cosine : sine;
    return bits_i32_f32(bits_f32_i32(y) ^ (int32_t)((uint32_t)(turn & 2) << 30));
}
static inline float sin_f32(float x) { return turned(x, 0); }
static inline float cos_f32(float x) { return turned(x, 1); }

static inline double exp_f64(double x) { return exp(x); }
static inline double exp2_f64(double x) { return exp2(x); }
static inline double log_f64(double x) { return log(x); }
static inline double log2_f64(double x) { return log2(x); }
static inline double tanh_f64(double x) { return tanh(x); }
static inline double erf_f64(double x) { return erf(x); }
static inline double sin_f64(double x) { return sin(x); }
static inline double cos_f64(double x) { return cos(x); }

#define FLOATS(name, T, suffix)                                                                          \
    static inline T maximum_##name(T a, T b) { return a > b || a != a ? a : b; }                         \
    static inline T minimum_##name(T a, T b) { return a < b || a != a ? a : b; }                         \
    static inline T maxnum_##name(T a, T b) { return a > b || b != b ? a : b; }                          \
    static inline T minnum_##name(T a, T b) { return a < b || b != b ? a : b; }                          \
    static inline T abs_##name(T x) { return fabs##suffix(x); }                                          \
    static inline T rsqrt_##name(T x) { return 1 / sqrt##suffix(x); }                                    \
    static inline T pow_##name(T a, T b) { return pow##suffix(a, b); }                                   \
    static inline T atan2_##name(T a, T b) { return atan2##suffix(a, b); }                               \
    static inline T copysign_##name(T a, T b) { return copysign##suffix(a, b); }
#define FROM_C(function)                                                     \
    static inline float function##_f32(float x) { return function##f(x); }   \
    static inline double function##_f64(double x) { return function(x); }
FLOATS(f32, float, f)
FLOATS(f64, double, )
FROM_C(sqrt)
FROM_C(floor)
FROM_C(ceil)
FROM_C(trunc)
FROM_C(round)
FROM_C(tan)
FROM_C(log1p)
FROM_C(expm1)
FROM_C(log10)
FROM_C(asin)
FROM_C(acos)
FROM_C(atan)
FROM_C(sinh)
FROM_C(cosh)
FROM_C(asinh)
FROM_C(acosh)
FROM_C(atanh)
FROM_C(cbrt)
static inline float roundeven_f32(float x) { return rintf(x); }
static inline double roundeven_f64(double x) { return rint(x); }

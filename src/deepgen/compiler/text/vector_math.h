// Functions of vectors of LANES f32, off by at most two units in the last place. Include it after numbers.h once for
// each length of vectors, with LANES defined; f32xLANES must be there. Results that are no normal numbers may be zero.
#define JOINED_(a, b) a##b
#define JOINED(a, b) JOINED_(a, b)
#define OF(name) JOINED(name, LANES)
#define V OF(f32x)
#define BITS JOINED(OF(f32x), _mask)
#define FILL OF(all_f32x)
#define PICK OF(pick_f32x)

static inline V OF(abs_f32x)(V x) { return (V)((BITS)x & 0x7fffffff); }

// 2^n exp(r) with n whole, and exp(r) by a polynomial.
static inline V OF(exp_f32x)(V x) {
    const f32 rounder = 0x1.8p23f;  // added, it leaves n in the lowest bits
    for (int i = 0; i < LANES; i++) x[i] = x[i] > 89 ? 89 : x[i];
    for (int i = 0; i < LANES; i++) x[i] = x[i] < -104 ? -104 : x[i];
    V shifted = x * 0x1.715476p0f + rounder, n = shifted - rounder;
    V r = x - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f;  // ln 2: of its first part few enough digits to be exact
    V p = (((0.0013950807f * r + 0.00836907327f) * r + 0.0416662022f) * r + 0.166665167f) * r + 0.5f;
    p = p * (r * r) + r + 1;
#if defined(__AVX512F__) && LANES == 16
    return __builtin_ia32_scalefps512_mask(p, n, p, -1, 4);
#else
    BITS whole = (BITS)shifted - 0x4b400000, half = whole >> 1;  // two factors, so that large and tiny results come out
    return p * (V)((half + 127) << 23) * (V)((whole - half + 127) << 23);
#endif
}

// e ln 2 + log(1 + f), 1 + f between the roots of 1/2 and 2.
static inline V OF(log_f32x)(V x) {
    BITS tiny = x < 0x1p-126f;
    V scaled = PICK(tiny, x * 0x1p24f, x);
    BITS bits = (BITS)scaled - 0x3f3504f3, e = bits >> 23;
    V f = (V)((bits & 0x7fffff) + 0x3f3504f3) - 1;
    V n = __builtin_convertvector(e, V) - PICK(tiny, FILL(24), FILL(0));
    V p = ((-0.0763442963f * f + 0.127615497f) * f - 0.131601945f) * f + 0.142017618f;
    p = (((p * f - 0.166233569f) * f + 0.200012267f) * f - 0.250008225f) * f + 0.333333313f;
    V square = f * f;
    V log = (square * f * p + n * 0x1.7f7d1cp-20f) - 0.5f * square + f + n * 0x1.62e4p-1f;
    log = PICK(x == 0, FILL(-INFINITY), PICK(x < 0, FILL(NAN), log));
    return PICK((x == INFINITY) | (x != x), x, log);
}

static inline V OF(sigmoid_f32x)(V x) {
    V e = OF(exp_f32x)(-OF(abs_f32x)(x)), sum = 1 + e, lost = e - (sum - 1);
    V y = PICK(x < 0, e, FILL(1)) / sum;
    return y - y * lost * (1 - 0.5f * e);  // what rounding the sum lost, over nearly the sum
}

// Odd in x: by a polynomial near zero, by the exponential elsewhere.
static inline V OF(tanh_f32x)(V x) {
    V size = OF(abs_f32x)(x), z = x * x;
    V p = (0.00206466205f * z - 0.00809196476f) * z + 0.0216663443f;
    p = ((p * z - 0.0539405644f) * z + 0.133331582f) * z - 0.333333284f;
    V large = 1 - 2 / (OF(exp_f32x)(size + size) + 1);
    V signed_large = (V)((BITS)large | ((BITS)x & (BITS)FILL(-0.0f)));
    return PICK(size < 0.625f, x + x * z * p, PICK(x != x, x, signed_large));
}

// Odd in x: by a polynomial near zero; elsewhere from that of the logarithm of 1 - erf.
static inline V OF(erf_f32x)(V x) {
    V size = OF(abs_f32x)(x), z = x * x;
    V p = ((8.39691565e-05f * z - 0.000814958476f) * z + 0.00520169502f) * z - 0.0268596932f;
    p = ((p * z + 0.112837017f) * z - 0.376126349f) * z + 0.128379166f;
    V a = PICK(size > 4, FILL(4), size);
    V q = ((-2.0909556e-05f * a + 0.000432303001f) * a - 0.00416052714f) * a + 0.0250914972f;
    q = (((q * a - 0.108236618f) * a - 0.633386672f) * a - 1.12949514f) * a + 0.000170552026f;
    V large = 1 - OF(exp_f32x)(q);
    V signed_large = (V)((BITS)large | ((BITS)x & (BITS)FILL(-0.0f)));
    return PICK(size < 0.9f, x + x * p, PICK(x != x, x, signed_large));
}

// The sine of x + quarter turns. Numbers too large to be reduced here are left to the C library.
static inline V OF(turned_f32x)(V x, i32 quarters) {
    V shifted = x * 0x1.45f306p-1f + 0x1.8p23f, n = shifted - 0x1.8p23f;
    V r = x - n * 0x1.92p0f - n * 0x1.fb4p-12f - n * 0x1.444p-24f - n * 0x1.68c234p-39f;  // pi / 2 in four parts
    V z = r * r;
    V sine = ((2.71756448e-06f * z - 0.000198392561f) * z + 0.00833332911f) * z - 0.166666672f;
    V cosine = (2.44312032e-05f * z - 0.0013887306f) * z + 0.0416666456f;
    sine = r + r * z * sine;
    cosine = 1 - 0.5f * z + z * z * cosine;
    BITS turn = (BITS)shifted + quarters;
    V y = PICK((turn & 1) != 0, cosine, sine);
    y = (V)((BITS)y ^ (turn & 2) << 30);
    for (int lane = 0; lane < LANES; lane++)
        if (!(fabsf(x[lane]) < 8192)) y[lane] = quarters ? cosf(x[lane]) : sinf(x[lane]);
    return y;
}

static inline V OF(sin_f32x)(V x) { return OF(turned_f32x)(x, 0); }
static inline V OF(cos_f32x)(V x) { return OF(turned_f32x)(x, 1); }

#undef JOINED_
#undef JOINED
#undef OF
#undef V
#undef BITS
#undef FILL
#undef PICK

// What every exported library has: errors in words, a look at the processor, loading of kernels, and the choice of one.
// All of it may be called from several threads at once.
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEAR 0.05      // octaves: a shape this near counts as much as any nearer one
#define LINE 128       // bytes: rows that begin at multiples of it are read in whole lines
#define MOST_SIZES 16  // of an operator
#define MOST_ENTRIES 8

typedef struct kernel kernel;
struct kernel {
    const char *name;
    const char *file;                    // on a processor: the shared library beside this one
    const unsigned char *image;          // on a GPU: the module
    const char *machine;                 // what it is built for: aarch64, x86_64, sm_90a, gfx90a
    const char *const *features;         // instruction sets that the processor must have, up to a null
    const char *const *entries;          // up to a null
    int (*serves)(const int64_t *v);     // whether sizes and strides meet all requirements
    size_t (*bytes)(const int64_t *v);   // of workspace
    double (*model)(const int64_t *v);   // seconds by its family's model; null or NAN: there is none
    deepgen_status (*run)(kernel *, const int64_t *v, void *const *tensors, char *workspace, void *stream);
    _Atomic int state;                   // 0 not looked at, 1 loaded, 2 cannot be used here
    void *symbols[MOST_ENTRIES];
    char why[160];                       // it cannot be used
};

// What a vendor's library reaches for a product on a GPU, as baselines/products.py tells.
typedef struct {
    double rows, columns, each;  // a tile, and seconds for each element of K
} tile;

typedef struct {
    double multiprocessors, byte_seconds, fixed_seconds, parts_seconds, parts, least_k, step;
    const tile *tiles;
    int tile_count;
} vendor_model;

// Kernels that were timed under like conditions, and the shapes that they were timed at.
typedef struct {
    kernel *const *kernels;
    int kernel_count, point_count, size_count, rival_count;
    const int64_t *sizes;     // of each point
    const double *lost;       // kernel by point: the logarithm of its time over the best one's; NAN: it was not timed
    const double *modelled;   // kernel by point: the logarithm of its time by its family's model, or NAN
    const double *rivals;     // baseline by point: the logarithm of its time over the best kernel's, or NAN
    const int *row_bytes;     // of each size that is the length of rows: of an element; 0: it does not matter
    const double *reached;    // at each point: the logarithm of what a vendor's library takes by its model, or NAN
    double (*vendor_model)(const int64_t *v);  // the same at the shape that is asked for; null: there is none
    const int *chosen;        // at each point: the kernel, or -1 for a vendor's library
    const double *margins;    // of each kernel: by so much it must be ahead of a vendor's library
    double lost_per_octave, far, most_lost;
} group;

// One for all files of the library.
#ifdef DEEPGEN_MAIN
_Thread_local char deepgen_error[400];
_Atomic(deepgen_parallel) deepgen_lender;
#else
extern _Thread_local char deepgen_error[400];
extern _Atomic(deepgen_parallel) deepgen_lender;
#endif

static deepgen_status fail(deepgen_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
static deepgen_status fail(deepgen_status status, const char *format, ...) {
    va_list given;
    va_start(given, format);
    vsnprintf(deepgen_error, sizeof deepgen_error, format, given);
    va_end(given);
    return status;
}

#ifdef DEEPGEN_MAIN
DEEPGEN_API const char *deepgen_last_error(void) { return deepgen_error; }
DEEPGEN_API void deepgen_set_parallel(deepgen_parallel parallel) { atomic_store(&deepgen_lender, parallel); }
DEEPGEN_API int deepgen_abi_version(void) { return DEEPGEN_ABI_VERSION; }
DEEPGEN_API const char *deepgen_status_text(deepgen_status status) {
    switch (status) {
        case DEEPGEN_OK: return "done";
        case DEEPGEN_NOT_SERVED: return "no kernel serves this call, or a vendor's library is expected to be faster";
        case DEEPGEN_BAD_ARGUMENT: return "an argument cannot be used";
        case DEEPGEN_NO_WORKSPACE: return "the workspace is missing or too small";
        case DEEPGEN_NOT_LOADED: return "a kernel or a driver could not be loaded";
        case DEEPGEN_DEVICE_ERROR: return "a call of the device's driver failed";
    }
    return "an unknown status";
}
#endif

static inline int64_t floor_div(int64_t a, int64_t b) { return b ? a / b - (a % b != 0 && (a < 0) != (b < 0)) : 0; }
static inline int64_t modulo(int64_t a, int64_t b) { return b ? a - floor_div(a, b) * b : 0; }
static inline int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }
static inline size_t aligned(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
// In the child of a fork no other thread is loading.
static void loading_forked(void) { loading = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; }
__attribute__((constructor)) static void loading_start(void) { pthread_atfork(0, 0, loading_forked); }

// The words of the first line of /proc/cpuinfo that lists instruction sets, with a space on both sides.
static const char *processor_features(void) {
    static char words[8192];
    static int known;
    if (known) return words;
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[8000];
    strcpy(words, " ");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "flags", 5) || !strncmp(line, "Features", 8)) {
            line[strcspn(line, "\n")] = 0;
            snprintf(words, sizeof words, " %s ", strchr(line, ':') ? strchr(line, ':') + 1 : "");
            break;
        }
    if (file) fclose(file);
    known = 1;
    return words;
}

static int processor_has(const char *feature) {
    char word[64];
    snprintf(word, sizeof word, " %s ", feature);
    return strstr(processor_features(), word) != 0;
}

static const char *machine_here(void) {
#if defined(__aarch64__)
    return "aarch64";
#elif defined(__x86_64__)
    return "x86_64";
#else
    return "another machine";
#endif
}

// The shared library of a kernel. Called with `loading` held.
static int load_file(kernel *k) {
    if (strcmp(k->machine, machine_here())) {
        snprintf(k->why, sizeof k->why, "it is for %s, and this is %s", k->machine, machine_here());
        return 0;
    }
    for (const char *const *feature = k->features; *feature; feature++)
        if (!processor_has(*feature)) {
            snprintf(k->why, sizeof k->why, "this processor has no %s", *feature);
            return 0;
        }
    Dl_info own;
    char path[4096];
    const char *slash = dladdr((void *)load_file, &own) ? strrchr(own.dli_fname, '/') : 0;
    int length = slash ? (int)(slash - own.dli_fname) : 1;
    snprintf(path, sizeof path, "%.*s/" DEEPGEN_NAME "/%s", length, slash ? own.dli_fname : ".", k->file);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *said = dlerror();
        snprintf(k->why, sizeof k->why, "it cannot be loaded: %.120s", said ? said : path);
        return 0;
    }
    const char *(*refusal)(void) = (const char *(*)(void))dlsym(library, "deepgen_refusal");
    const char *refused = refusal ? refusal() : 0;
    if (refused) {
        snprintf(k->why, sizeof k->why, "%.150s", refused);
        return 0;
    }
    void (*lend)(deepgen_parallel) = (void (*)(deepgen_parallel))dlsym(library, "deepgen_set_parallel");
    if (lend) lend(atomic_load(&deepgen_lender));
    for (int i = 0; k->entries[i]; i++)
        if (!(k->symbols[i] = dlsym(library, k->entries[i]))) {
            snprintf(k->why, sizeof k->why, "it has no entry %.100s", k->entries[i]);
            return 0;
        }
    return 1;
}

static int load_module(kernel *k);

// Whether a kernel can be used here; it is loaded when that is asked for the first time.
static int usable(kernel *k) {
    int state = atomic_load(&k->state);
    if (!state) {
        pthread_mutex_lock(&loading);
        if (!(state = atomic_load(&k->state))) {
            state = (k->file ? load_file(k) : load_module(k)) ? 1 : 2;
            atomic_store(&k->state, state);
        }
        pthread_mutex_unlock(&loading);
    }
    return state == 1;
}

// The logarithm of a kernel's time by its family's model.
static double modelled_now(const kernel *k, const int64_t *v) {
    double seconds = k->model ? k->model(v) : NAN;
    return seconds > 0 ? log(seconds) : NAN;
}

// How much longer a kernel takes by its model than the best of them, or than a vendor's library by its model.
// Without a model nothing is told.
static double above(double modelled, double best) { return isnan(modelled) ? 0 : modelled - best; }

// The multiple of bytes that rows of so many bytes begin at, up to a line.
static double row_begin(int64_t row) { return (double)least(row & -row, LINE); }

// Seconds of a product by the vendor's model.
__attribute__((unused)) static double reached_seconds(const vendor_model *y, int64_t m, int64_t n, int64_t k,
                                                      int64_t batch, int64_t bytes) {
    double memory = (double)bytes * y->byte_seconds, best = INFINITY;
    for (const tile *t = y->tiles; t < y->tiles + y->tile_count; t++) {
        double tiles = ceil((double)m / t->rows) * ceil((double)n / t->columns) * (double)batch;
        for (double parts = 1; parts <= y->parts && (parts == 1 || (double)k >= parts * y->least_k); parts *= 2) {
            double rounds = ceil(tiles * parts / y->multiprocessors);
            double busy = rounds * (y->step * ceil((double)k / (parts * y->step))) * t->each;
            double whole = (busy > memory ? busy : memory) + (parts > 1 ? y->parts_seconds : 0);
            if (whole < best) best = whole;
        }
    }
    return y->fixed_seconds + best;
}

// The average over points near a shape. Values that are not known do not count.
static double averaged(const double *values, const double *weights, int count) {
    double sum = 0, whole = 0;
    for (int p = 0; p < count; p++)
        if (!isnan(values[p])) sum += weights[p] * values[p], whole += weights[p];
    return whole > 0 ? sum / whole : NAN;
}

// The kernel that is expected to be the fastest. Null: none serves, or a vendor's library is faster, as `why` says.
static kernel *choose_in(const group *g, const int64_t *sizes, const int64_t *v, const char **why) {
    double weights[g->point_count], distances[g->point_count], aways[g->point_count];
    for (int p = 0; p < g->point_count; p++) {
        const int64_t *there = g->sizes + p * g->size_count;
        double squares = 0, rows = 0;
        int same = 1;
        for (int s = 0; s < g->size_count; s++) {
            same &= sizes[s] == there[s];
            if (sizes[s] <= 0 || there[s] <= 0) continue;  // such as no padding
            double octaves = log2((double)sizes[s] / (double)there[s]);
            squares += octaves * octaves;
            int64_t element = g->row_bytes[s];
            if (!element) continue;
            double begins = log2(row_begin(sizes[s] * element) / row_begin(there[s] * element));
            rows += begins * begins;
        }
        distances[p] = sqrt(squares);
        aways[p] = sqrt(squares + rows);
        weights[p] = 1 / ((NEAR + aways[p]) * (NEAR + aways[p]));
        if (same) {
            if (g->chosen[p] < 0) return *why = "a vendor's library was faster at this shape", (kernel *)0;
            kernel *k = g->kernels[g->chosen[p]];
            if (k->serves(v) && usable(k)) return k;
        }
    }
    int count = g->kernel_count, points = g->point_count;
    double now[count], best_now = INFINITY, best_there[points], lost[points];
    int able[count];
    for (int p = 0; p < points; p++) best_there[p] = g->vendor_model ? g->reached[p] : INFINITY;
    for (int i = 0; i < count; i++) {
        able[i] = g->kernels[i]->serves(v) && usable(g->kernels[i]);
        now[i] = able[i] ? modelled_now(g->kernels[i], v) : NAN;
        if (now[i] < best_now) best_now = now[i];
        for (int p = 0; p < points && !g->vendor_model; p++)
            if (able[i] && g->modelled[i * points + p] < best_there[p]) best_there[p] = g->modelled[i * points + p];
    }
    if (g->vendor_model) best_now = log(g->vendor_model(v));
    kernel *best = 0;
    double time = 0, margin = 0;
    for (int i = 0; i < count; i++) {
        double nearest = INFINITY, away = INFINITY;
        for (int p = 0; p < points; p++) {
            lost[p] = g->lost[i * points + p] - above(g->modelled[i * points + p], best_there[p]);
            if (lost[p] > g->most_lost) lost[p] = g->most_lost;
            if (!isnan(lost[p]) && distances[p] < nearest) nearest = distances[p];
            if (!isnan(lost[p]) && aways[p] < away) away = aways[p];
        }
        if (!able[i] || nearest > g->far) continue;
        double expected = averaged(lost, weights, points) + above(now[i], best_now) + g->lost_per_octave * away;
        if (!best || expected < time) best = g->kernels[i], time = expected, margin = g->margins[i];
    }
    if (!best) return *why = "no kernel of a shape near this one serves it here", (kernel *)0;
    for (int r = 0; r < g->rival_count; r++)
        if (averaged(g->rivals + r * g->point_count, weights, g->point_count) < time + margin)
            return *why = "a vendor's library may be faster at this shape", (kernel *)0;
    return best;
}

// The same over groups, of which the first has the most instruction sets.
static kernel *choose(const group *groups, int count, const int64_t *sizes, const int64_t *v, const char **why) {
    *why = "the library has no kernel for this machine";
    for (int i = 0; i < count; i++) {
        int here = 0;
        for (int j = 0; j < groups[i].kernel_count && !here; j++) here = usable(groups[i].kernels[j]);
        if (here) return choose_in(&groups[i], sizes, v, why);
        if (groups[i].kernels[0]->why[0]) *why = groups[i].kernels[0]->why;
    }
    return 0;
}

// The call itself, once the workspace is known to suffice.
static deepgen_status run(kernel *k, const int64_t *v, void *const *tensors, void *workspace, size_t given, void *stream) {
    size_t needed = k->bytes(v);
    if (needed && (!workspace || given < needed))
        return fail(DEEPGEN_NO_WORKSPACE, "%zu bytes of workspace are given, and %zu are needed", workspace ? given : 0,
                    needed);
    return k->run(k, v, tensors, workspace, stream);
}

// A CUDA driver for machines without a GPU: device memory is host memory, a module is a shared library named by its
// image ("FAKE:" and a path), and a kernel is a C function that is given the launch's arguments. It runs at once, but on
// streams that the driver has made: what these were given runs in a thread for each of them, once they are waited for.
//
// It shows that the measuring worker and loaded kernels do the right calls in the right order, no more.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int (*Entry)(void** params, const unsigned* grid, const unsigned* block);
typedef struct { unsigned grid[3], block[3], shared; void* stream; void* attributes; unsigned count; } Config;
typedef unsigned long long u64;

static int sticky;  // like the real one: once a kernel has failed, every call does
static unsigned allowed = 48 << 10;
static int launched;

// A stream that was made: what it is to do, in order.
enum { LANES = 8, WORK = 256 };
typedef struct { Entry entry; void **params, *to; const void* from; size_t size; int byte; Config config; } Work;
typedef struct { Work work[WORK]; int count, used; } Stream;
static Stream streams[LANES];

static Stream* made(void* handle) {
    for (int i = 0; i < LANES; i++)
        if (handle == &streams[i]) return &streams[i];
    return 0;
}
static void* work_off(void* given) {
    Stream* stream = given;
    for (int i = 0; i < stream->count; i++) {
        Work* w = &stream->work[i];
        if (w->entry) {
            int code = w->entry(w->params, w->config.grid, w->config.block);
            if (code) sticky = code;
        } else if (w->from) memcpy(w->to, w->from, w->size);
        else memset(w->to, w->byte, w->size);
    }
    stream->count = 0;
    return 0;
}
// Whatever the default stream does waits for them.
static void drain(void) {
    pthread_t threads[LANES];
    int begun[LANES] = {0};
    for (int i = 0; i < LANES; i++)
        if (streams[i].count) begun[i] = !pthread_create(&threads[i], 0, work_off, &streams[i]);
    for (int i = 0; i < LANES; i++)
        if (begun[i]) pthread_join(threads[i], 0);
}
// 1: it was kept for later.
static int later(void* handle, Work work) {
    Stream* stream = made(handle);
    if (!stream) { drain(); return 0; }
    if (stream->count == WORK) drain();
    stream->work[stream->count++] = work;
    return 1;
}

#define TRY if (sticky) return sticky

int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuDeviceGet(int* device, int index) { *device = index; return index ? 101 : 0; }
int cuDeviceGetName(char* name, int size, int device) { snprintf(name, size, "NVIDIA H200"); return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    switch (attribute) {
        case 1: *value = 1024; break;
        case 10: *value = 32; break;
        case 13: *value = 1980000; break;
        case 16: *value = 132; break;
        case 38: *value = 1 << 20; break;
        case 39: *value = 2048; break;
        case 75: *value = 9; break;
        case 76: *value = 0; break;
        case 81: *value = 233472; break;
        case 82: *value = 65536; break;
        case 97: *value = 232448; break;
        case 106: *value = 32; break;
        case 111: *value = 1024; break;
        default: return 1;
    }
    return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = 1ull << 30; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)1; return 0; }
static _Thread_local void* current;
int cuCtxSetCurrent(void* context) { current = context; return 0; }
int cuCtxGetCurrent(void** context) { *context = current; return 0; }
int cuCtxGetDevice(int* device) { *device = 0; return current ? 0 : 201; }
// A tensor map holds what a kernel of these tests needs: the address, and the sizes and strides of two dimensions.
int cuTensorMapEncodeTiled(u64* map, int type, unsigned rank, void* address, const u64* sizes, const u64* strides,
                           const unsigned* box) {
    if ((uintptr_t)map % 64 || rank != 2) return 1;
    map[0] = (u64)address, map[1] = sizes[0], map[2] = sizes[1], map[3] = strides[0], map[4] = box[0], map[5] = type;
    return 0;
}
// One of windows does too, where its corners and steps are those of these tests.
int cuTensorMapEncodeIm2col(u64* map, int type, unsigned rank, void* address, const u64* sizes, const u64* strides,
                            const int* lower, const int* upper, unsigned channels, unsigned pixels,
                            const unsigned* steps) {
    int corners = lower[0] == -1 && lower[1] == 0 && upper[0] == 0 && upper[1] == -2;
    if (rank != 4 || !corners || pixels != 8 || steps[0] != 1 || steps[1] != 1 || steps[2] != 2) return 1;
    return cuTensorMapEncodeTiled(map, type, 2, address, sizes, strides, &channels);
}
int cuMemAlloc_v2(void** out, size_t size) {
    TRY;
    if (size > (4ull << 30)) return 2;
    *out = aligned_alloc(256, (size + 255) / 256 * 256);
    return *out ? 0 : 2;
}
int cuMemFree_v2(void* p) { free(p); return sticky; }
int cuMemcpyHtoD_v2(void* to, const void* from, size_t size) { drain(); TRY; memcpy(to, from, size); return 0; }
int cuMemcpyDtoH_v2(void* to, const void* from, size_t size) { drain(); TRY; memcpy(to, from, size); return 0; }
int cuMemcpyDtoDAsync_v2(void* to, const void* from, size_t size, void* stream) {
    TRY;
    if (!later(stream, (Work){.to = to, .from = from, .size = size})) memcpy(to, from, size);
    return 0;
}
int cuStreamCreate(void** stream, unsigned flags) {
    for (int i = 0; i < LANES; i++)
        if (!streams[i].used) { streams[i].used = 1, *stream = &streams[i]; return 0; }
    return 2;
}
int cuStreamDestroy_v2(void* stream) { drain(); made(stream)->used = 0; return 0; }
int cuStreamWaitEvent(void* stream, void* event, unsigned flags) { drain(); return 0; }
// So much is filled only to keep a device busy and its caches cold, which there are none of here: nobody reads it.
static const size_t ballast = 128 << 20;
int cuMemsetD8Async(void* to, unsigned char byte, size_t size, void* stream) {
    TRY;
    if (size < ballast && !later(stream, (Work){.to = to, .size = size, .byte = byte})) memset(to, byte, size);
    return 0;
}
int cuMemGetInfo_v2(size_t* free, size_t* total) { *free = *total = 1ull << 30; return 0; }
// Kernels run when they are launched, but the device's own clock runs as if they were enqueued: it is busy until
// `idle`, and an event happens then.
static double idle;
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}
static void busy(double from, double milliseconds) { idle = (from > idle ? from : idle) + milliseconds; }
int cuEventCreate(void** event, unsigned flags) { *event = calloc(1, sizeof(double)); return 0; }
int cuEventRecord(double* event, void* stream) {
    TRY;
    *event = now();
    if (idle > *event) *event = idle;
    return 0;
}
int cuEventQuery(const double* event) { TRY; return now() < *event ? 600 : 0; }
int cuEventElapsedTime(float* milliseconds, double* start, double* end) { *milliseconds = *end - *start; return 0; }
int cuCtxSynchronize(void) { drain(); return sticky; }

static int judge(void** p) {
    const float* some = *(void**)p[0];
    const double* want = *(void**)p[1];
    const float* scale = *(void**)p[2];
    double absolute = *(double*)p[6], relative = *(double*)p[7], smallest = *(double*)p[9], worst = 0;
    u64 count = *(u64*)p[3], *found = *(void**)p[10], bits;
    int each = *(int*)p[4], whole = *(int*)p[5] == 5, wide = *(int*)p[5] == 0;  // i32, f64
    for (u64 i = 0; i < count; i++) {
        double got = wide ? ((const double*)some)[i] : some[i], off = got - want[i], size = want[i] < 0 ? -want[i] : want[i];
        double own = wide ? ((const double*)scale)[each ? i : 0] : scale[each ? i : 0];
        double share = (off < 0 ? -off : off) / (absolute * own + relative * size + smallest);
        if (got == want[i] || (got != got && want[i] != want[i])) share = 0;  // also infinities, and NaNs
        if (whole) share = ((const int*)some)[i] == ((const long long*)want)[i] ? 0 : 1.0 / 0.0;
        if (!(share <= 1.0)) found[0]++;
        if (share != share) share = 1.0 / 0.0;
        if (share > worst) worst = share;
    }
    memcpy(&bits, &worst, 8);
    if (bits > found[1]) found[1] = bits;
    return 0;
}

static int differ(void** p) {
    const unsigned char *a = *(void**)p[0], *b = *(void**)p[1];
    u64 bytes = *(u64*)p[2], *found = *(void**)p[3];
    for (u64 i = 0; i < bytes; i++)
        if (a[i] != b[i]) {
            if (!found[0]++) found[1] = ~i;
        }
    return 0;
}

int cuModuleLoadData(void** module, const char* image) {
    TRY;
    if (!memcmp(image, "\177ELF", 4)) { *module = (void*)1; return 0; }  // the worker's own kernels
    if (strncmp(image, "FAKE:", 5)) return 200;
    *module = dlopen(image + 5, RTLD_NOW);
    return *module ? 0 : 200;
}
int cuModuleUnload(void* module) { return sticky; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
    TRY;
    if (module != (void*)1) *function = dlsym(module, name);
    else *function = !strcmp(name, "dg_judge")    ? (void*)2
                     : !strcmp(name, "dg_differ") ? (void*)3
                     : !strcmp(name, "dg_hold")   ? (void*)4
                                                  : (void*)5;
    return *function ? 0 : 500;
}
int cuModuleGetGlobal_v2(void** address, size_t* bytes, void* module, const char* name) {
    TRY;
    Dl_info about;
    Elf64_Sym* symbol = 0;
    *address = dlsym(module, name);
    if (!*address || !dladdr1(*address, &about, (void**)&symbol, RTLD_DL_SYMENT)) return 500;
    *bytes = symbol->st_size;
    return 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
    if (attribute == 8 && value > 232448) return 1;
    if (attribute == 8) allowed = value;
    return 0;
}
int cuLaunchKernelEx(const Config* config, void* function, void** params, void** extra) {
    TRY;
    if (!current) return 201;
    if (config->shared > allowed) return 1;
    if (function <= (void*)5) drain();
    if (function == (void*)2) return judge(params);
    if (function == (void*)3) return differ(params);
    if (function == (void*)4) busy(now(), **(u64**)params * 0.5e-6);  // at 2 GHz
    if (function <= (void*)5) return 0;
    launched++;
    if (later(config->stream, (Work){.entry = (Entry)function, .params = params, .config = *config})) return 0;
    double start = now();
    sticky = ((Entry)function)(params, config->grid, config->block);
    busy(start, now() - start);
    return 0;  // as on a GPU, a fault shows when the kernel is waited for
}
int cuLaunchKernel(void) { return 999; }
// A fake profiler learns from a file how many kernels ran while it was to look.
int cuProfilerStart(void) { launched = 0; return 0; }
int cuProfilerStop(void) {
    FILE* file = getenv("FAKE_PROFILE") ? fopen(getenv("FAKE_PROFILE"), "w") : 0;
    if (file) { fprintf(file, "%d", launched); fclose(file); }
    return 0;
}
int cuGetErrorString(int code, const char** text) {
    *text = code == 700 ? "an illegal memory access was encountered"
            : code == 2 ? "out of memory"
            : code == 1 ? "invalid argument"
            : code == 201 ? "invalid device context"
                        : "some error";
    return 0;
}

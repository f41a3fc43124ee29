// Kernels on GPUs: modules in this library are loaded through the driver that is found at run time, and launched on the
// caller's stream in the caller's context. CUDA's driver and HIP's runtime have the same shape.
#define MOST_CONTEXTS 16
#define STATIC_SHARED (48 << 10)  // up to this a launch may ask for shared memory without notice

typedef struct {
    unsigned grid[3], block[3], cluster[3], shared, overlaps;
} launch_shape;
typedef struct {
    int id, pad;
    unsigned value[16];
} launch_attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream;
    launch_attribute *attributes;
    unsigned count;
} launch_config;
typedef struct {
    void *context, *module, *functions[MOST_ENTRIES];
} loaded_module;

static struct {
    void *library;
    int looked;
    char why[160];
    int (*init)(unsigned), (*load)(void **, const void *), (*function)(void **, void *, const char *);
    int (*set_attribute)(void *, int, int), (*fill)(void *, unsigned char, size_t, void *);
    int (*launch_ex)(const launch_config *, void *, void **, void **);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int (*current)(void **), (*get_device)(int *, int), (*retain)(void **, int), (*set_current)(void *);
    int (*context_device)(int *), (*attribute)(int *, int, int), (*error_text)(int, const char **);
    int (*encode)(void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *,
                  int, int, int, int);
    int (*encode_windows)(void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const int *, const int *,
                          uint32_t, uint32_t, const uint32_t *, int, int, int, int);
} driver;

#ifdef DEEPGEN_HIP
static const char *const driver_files[] = {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", 0};
static const struct { void *to; const char *name; int needed; } driver_names[] = {
    {&driver.init, "hipInit", 1}, {&driver.load, "hipModuleLoadData", 1}, {&driver.function, "hipModuleGetFunction", 1},
    {&driver.set_attribute, "hipFuncSetAttribute", 1}, {&driver.fill, "hipMemsetD8Async", 1},
    {&driver.launch, "hipModuleLaunchKernel", 1}, {&driver.context_device, "hipGetDevice", 1},
};
#else
static const char *const driver_files[] = {"libcuda.so.1", 0};
static const struct { void *to; const char *name; int needed; } driver_names[] = {
    {&driver.init, "cuInit", 1}, {&driver.load, "cuModuleLoadData", 1}, {&driver.function, "cuModuleGetFunction", 1},
    {&driver.set_attribute, "cuFuncSetAttribute", 1}, {&driver.fill, "cuMemsetD8Async", 1},
    {&driver.launch_ex, "cuLaunchKernelEx", 1}, {&driver.current, "cuCtxGetCurrent", 1},
    {&driver.get_device, "cuDeviceGet", 1}, {&driver.retain, "cuDevicePrimaryCtxRetain", 1},
    {&driver.set_current, "cuCtxSetCurrent", 1}, {&driver.context_device, "cuCtxGetDevice", 1},
    {&driver.attribute, "cuDeviceGetAttribute", 1}, {&driver.error_text, "cuGetErrorString", 0},
    {&driver.encode, "cuTensorMapEncodeTiled", 0}, {&driver.encode_windows, "cuTensorMapEncodeIm2col", 0},
};
#endif

// Called with `loading` held.
static int open_driver(void) {
    if (driver.looked) return driver.library != 0;
    driver.looked = 1;
    for (int i = 0; driver_files[i] && !driver.library; i++) driver.library = dlopen(driver_files[i], RTLD_NOW);
    if (!driver.library) {
        snprintf(driver.why, sizeof driver.why, "%s is missing: install the GPU's driver", driver_files[0]);
        return 0;
    }
    for (size_t i = 0; i < sizeof driver_names / sizeof *driver_names; i++) {
        void *found = dlsym(driver.library, driver_names[i].name);
        memcpy(driver_names[i].to, &found, sizeof found);
        if (!found && driver_names[i].needed) {
            snprintf(driver.why, sizeof driver.why, "%s has no %s", driver_files[0], driver_names[i].name);
            driver.library = 0;
            return 0;
        }
    }
    int code = driver.init(0);
    if (code) snprintf(driver.why, sizeof driver.why, "the driver does not start: error %d", code), driver.library = 0;
    return driver.library != 0;
}

// The context of the calling thread: on CUDA the current one, or the first device's primary one; on HIP the device.
static int current_context(void **context) {
#ifdef DEEPGEN_HIP
    int device = 0, code = driver.context_device(&device);
    *context = (void *)(intptr_t)(device + 1);
    return code;
#else
    int code = driver.current(context);
    if (code || *context) return code;
    int device;
    if ((code = driver.get_device(&device, 0)) || (code = driver.retain(context, device))) return code;
    return driver.set_current(*context);
#endif
}

// Whether the device of the current context runs what the kernel is built for.
static int device_runs(kernel *k) {
#ifndef DEEPGEN_HIP
    int device, major = 0, minor = 0, wanted = atoi(k->machine + 3);
    if (driver.context_device(&device)) device = 0;
    driver.attribute(&major, 75, device), driver.attribute(&minor, 76, device);
    if (10 * major + minor != wanted) {
        snprintf(k->why, sizeof k->why, "it is for %s, and this device is sm_%d%d", k->machine, major, minor);
        return 0;
    }
#endif
    return 1;
}

static int load_module(kernel *k) {
    void *context = 0;
    if (!open_driver()) return snprintf(k->why, sizeof k->why, "%.150s", driver.why), 0;
    int code = current_context(&context);
    if (code) return snprintf(k->why, sizeof k->why, "there is no device: error %d", code), 0;
    return device_runs(k);
}

// The kernel's functions in the current context, where its module is loaded when it is asked for the first time.
static deepgen_status functions_of(kernel *k, loaded_module *modules, void ***functions) {
    void *context = 0;
    int code = current_context(&context);
    if (code) return fail(DEEPGEN_DEVICE_ERROR, "%s: there is no device: error %d", k->name, code);
    deepgen_status status = DEEPGEN_NOT_LOADED;
    pthread_mutex_lock(&loading);
    for (int i = 0; i < MOST_CONTEXTS; i++) {
        loaded_module *m = &modules[i];
        if (!m->context) {
            if ((code = driver.load(&m->module, k->image))) break;
            for (int e = 0; k->entries[e] && !code; e++)
                code = driver.function(&m->functions[e], m->module, k->entries[e]);
            if (code) break;
            m->context = context;
        }
        if (m->context == context) {
            *functions = m->functions;
            status = DEEPGEN_OK;
            break;
        }
    }
    pthread_mutex_unlock(&loading);
    if (status) fail(status, "%s cannot be loaded: error %d of the driver", k->name, code);
    return status;
}

static deepgen_status driver_status(kernel *k, const char *call, int code) {
    const char *text = 0;
    if (!code) return DEEPGEN_OK;
    if (driver.error_text) driver.error_text(code, &text);
    return fail(DEEPGEN_DEVICE_ERROR, "%s: %s failed: %s (%d)", k->name, call, text ? text : "unknown error", code);
}

static deepgen_status launch(kernel *k, void *function, const launch_shape *s, void *stream, void **arguments) {
    int code = s->shared > STATIC_SHARED ? driver.set_attribute(function, 8, (int)s->shared) : 0;
    if (code) return driver_status(k, "setting its shared memory", code);
#ifdef DEEPGEN_HIP
    code = driver.launch(function, s->grid[0], s->grid[1], s->grid[2], s->block[0], s->block[1], s->block[2], s->shared,
                         stream, arguments, 0);
#else
    unsigned size = s->cluster[0] * s->cluster[1] * s->cluster[2];
    if (size > 8 && (code = driver.set_attribute(function, 14, 1))) return driver_status(k, "allowing its cluster", code);
    // A launch that overlaps may begin before the one ahead of it has ended.
    launch_attribute asked[2] = {{6, 0, {1}}, {4, 0, {s->cluster[0], s->cluster[1], s->cluster[2]}}};
    launch_config config = {{s->grid[0], s->grid[1], s->grid[2]}, {s->block[0], s->block[1], s->block[2]}, s->shared,
                            stream, asked + !s->overlaps, (size > 1) + s->overlaps};
    code = driver.launch_ex(&config, function, arguments, 0);
#endif
    return driver_status(k, "its launch", code);
}

typedef struct {
    _Alignas(64) unsigned char bytes[128];
} tensor_map;

static deepgen_status encode(kernel *k, tensor_map *map, int type, unsigned rank, void *address, const uint64_t *sizes,
                             const uint64_t *strides, const uint32_t *box, int swizzle, int l2) {
    static const uint32_t ones[5] = {1, 1, 1, 1, 1};
    if (!driver.encode) return fail(DEEPGEN_NOT_LOADED, "%s: this driver has no tensor maps", k->name);
    int code = driver.encode(map->bytes, type, rank, address, sizes, strides, box, ones, 0, swizzle, l2, 0);
    return driver_status(k, "a tensor map", code);
}

// The windows of a convolution: `box` is channels and pixels, `corners` lower ones and then upper ones.
static deepgen_status encode_windows(kernel *k, tensor_map *map, int type, unsigned rank, void *address,
                                     const uint64_t *sizes, const uint64_t *strides, const uint32_t *box,
                                     const int *corners, const uint32_t *steps, int swizzle, int l2) {
    if (!driver.encode_windows) return fail(DEEPGEN_NOT_LOADED, "%s: this driver has no such tensor maps", k->name);
    int code = driver.encode_windows(map->bytes, type, rank, address, sizes, strides, corners, corners + rank - 2, box[0],
                                     box[1], steps, 0, swizzle, l2, 0);
    return driver_status(k, "a tensor map", code);
}

// HIP's runtime for machines without a GPU, as far as exported libraries call it: as fake_cuda.c, device memory is host
// memory and a module is a shared library that its image names.
#include <dlfcn.h>
#include <string.h>

int hipInit(unsigned flags) { return 0; }
int hipGetDevice(int *device) { *device = 0; return 0; }
int hipModuleLoadData(void **module, const char *image) {
    if (strncmp(image, "FAKE:", 5)) return 209;
    return (*module = dlopen(image + 5, RTLD_NOW)) ? 0 : 209;
}
int hipModuleGetFunction(void **function, void *module, const char *name) {
    return (*function = dlsym(module, name)) ? 0 : 500;
}
int hipFuncSetAttribute(void *function, int attribute, int value) { return 0; }
int hipMemsetD8Async(void *to, unsigned char byte, size_t size, void *stream) { memset(to, byte, size); return 0; }
int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **params, void **extra) {
    unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    return ((int (*)(void **, const unsigned *, const unsigned *))function)(params, grid, block);
}

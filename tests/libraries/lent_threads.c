// A program lends its threads to kernels: none of theirs is started.
#include <deepgen_kernels.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

static void on_this_thread(void (*work)(void *), void *job, unsigned threads, unsigned flags) {
    (void)threads, (void)flags;
    work(job);
    work(job);  // a second one that comes late finds nothing to do
}

static int threads_now(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    for (struct dirent *entry; folder && (entry = readdir(folder));) count += entry->d_name[0] != '.';
    if (folder) closedir(folder);
    return count;
}

int main(void) {
    int64_t m = 40, n = 60, k = 33;
    size_t bytes;
    float *a = malloc((size_t)(m * k) * 4), *b = malloc((size_t)(k * n) * 4), *c = malloc((size_t)(m * n) * 4);
    for (int64_t i = 0; i < m * k; i++) a[i] = 1;
    for (int64_t i = 0; i < k * n; i++) b[i] = 2;
    deepgen_set_parallel(on_this_thread);
    if (deepgen_gemm_f32_nn_workspace(m, n, k, &bytes)) return puts("no workspace"), 1;
    if (deepgen_gemm_f32_nn(m, n, k, a, k, b, n, c, n, malloc(bytes), bytes)) return puts(deepgen_last_error()), 1;
    for (int64_t i = 0; i < m * n; i++)
        if (c[i] != 66) return puts("wrong"), 1;
    return threads_now() == 1 ? 0 : (puts("it started threads"), 1);
}

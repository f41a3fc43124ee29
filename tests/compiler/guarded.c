/* Runs the functions of a table, every tensor right before a page that may not be touched, and then right after one.

   guarded INPUTS OUTPUTS FIRST: reads the inputs of all cases from one file and appends results to another. The number
   of a case is printed before it runs, so that the last one printed is the one that ended the process. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    void (*call)(void**, int32_t);
    int tensors, inputs, threads;
    long scratch;
    const long* bytes;
} Case;

#include "table.h"

static char* guarded(long bytes, int at_end, char** whole, long* length) {
    const long page = sysconf(_SC_PAGESIZE), room = (bytes + page - 1) / page * page;
    *length = room + 2 * page;
    *whole = mmap(0, *length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*whole == MAP_FAILED || mprotect(*whole, page, PROT_NONE) || mprotect(*whole + page + room, page, PROT_NONE)) {
        perror("memory");
        exit(3);
    }
    return *whole + page + (at_end ? room - bytes : 0);
}

int main(int count, char** words) {
    if (count != 4) return 2;
    FILE *in = fopen(words[1], "rb"), *out = fopen(words[2], "ab");
    if (!in || !out) return 2;
    for (int n = 0; n < CASES; n++) {
        const Case* one = &cases[n];
        char *given[64], *placed[64], *whole[64];
        long length[64];
        for (int t = 0; t < one->inputs; t++) {
            given[t] = malloc(one->bytes[t] + 1);
            if (fread(given[t], 1, one->bytes[t], in) != (size_t)one->bytes[t]) return 2;
        }
        for (int at_end = 1; at_end >= 0 && n >= atoi(words[3]); at_end--) {
            printf("%d\n", n);
            fflush(stdout);
            for (int t = 0; t <= one->tensors; t++) {
                const long bytes = t < one->tensors ? one->bytes[t] : one->scratch;
                placed[t] = guarded(bytes, at_end && t < one->tensors, &whole[t], &length[t]);
                if (t < one->inputs) memcpy(placed[t], given[t], bytes);
                else memset(placed[t], 0xA5, bytes);
            }
            one->call((void**)placed, one->threads);
            for (int t = 0; t <= one->tensors; t++) {
                if (t < one->inputs && memcmp(placed[t], given[t], one->bytes[t])) {
                    printf("an input was written to\n");
                    return 4;
                }
                if (t >= one->inputs && t < one->tensors) fwrite(placed[t], 1, one->bytes[t], out);
                munmap(whole[t], length[t]);
            }
            fflush(out);
        }
        for (int t = 0; t < one->inputs; t++) free(given[t]);
    }
    return 0;
}

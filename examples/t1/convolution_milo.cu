// A 2D convolution of a padded image, with the parameters that convolution.T1.json tunes.
//
// output[y][x] = sum over i, j of input[y + i][x + j] * filter[i][j]

#ifndef image_width
#define image_width 4096
#define image_height 4096
#endif
#define input_width (image_width + filter_width - 1)
#define input_height (image_height + filter_height - 1)

#define tile_width (block_size_x * tile_size_x)
#define tile_height (block_size_y * tile_size_y)
#define staged_width (tile_width + filter_width - 1)
#define staged_height (tile_height + filter_height - 1)
// Rows of an even length put the same column of neighbouring rows into the same bank.
#define staged_pitch (staged_width + use_padding * (1 - staged_width % 2))

#if use_cmem
__constant__ float d_filter[filter_height * filter_width];
#define WEIGHT(i, j) d_filter[(i) * filter_width + (j)]
#else
#define WEIGHT(i, j) filter[(i) * filter_width + (j)]
#endif

#if read_only
#define PIXEL(y, x) __ldg(input_image + (y) * input_width + (x))
#else
#define PIXEL(y, x) input_image[(y) * input_width + (x)]
#endif

extern "C" __global__ void convolution_kernel(float* output_image, const float* input_image, const float* filter) {
    const int left = blockIdx.x * tile_width;
    const int top = blockIdx.y * tile_height;

#if use_shmem
    __shared__ float staged[staged_height * staged_pitch];
    for (int y = threadIdx.y; y < staged_height; y += block_size_y)
        for (int x = threadIdx.x; x < staged_width; x += block_size_x)
            if (top + y < input_height && left + x < input_width)
                staged[y * staged_pitch + x] = PIXEL(top + y, left + x);
    __syncthreads();
#define VALUE(y, x) staged[(y) * staged_pitch + (x)]
#else
    // Beside the image, the last pixel is read: what is computed there is not written.
#define VALUE(y, x) PIXEL(min(top + (y), input_height - 1), min(left + (x), input_width - 1))
#endif

    float sum[tile_size_y][tile_size_x] = {};
#pragma unroll 1
    for (int i = 0; i < filter_height; i++)
#pragma unroll
        for (int j = 0; j < filter_width; j++)
#pragma unroll
            for (int y = 0; y < tile_size_y; y++)
#pragma unroll
                for (int x = 0; x < tile_size_x; x++)
                    sum[y][x] += VALUE(threadIdx.y + y * block_size_y + i, threadIdx.x + x * block_size_x + j) *
                                 WEIGHT(i, j);

#pragma unroll
    for (int y = 0; y < tile_size_y; y++) {
#pragma unroll
        for (int x = 0; x < tile_size_x; x++) {
            const int row = top + threadIdx.y + y * block_size_y;
            const int column = left + threadIdx.x + x * block_size_x;
            if (row < image_height && column < image_width) output_image[row * image_width + column] = sum[y][x];
        }
    }
}

// One step of a heat simulation, with the parameters that hotspot.T1.json tunes.
//
// A cell's temperature changes with the power put into it, its four neighbours and the ambient temperature; at the edge
// of the grid the missing neighbour is the cell itself. One block computes temporal_tiling_factor tiles that lie below
// each other, one after the other, so that the caches still hold the rows that two tiles share.

#if temporal_tiling_factor > max_tfactor
#error "temporal_tiling_factor is larger than max_tfactor"
#endif

#define ambient 80.0f
#define tile_width (block_size_x * tile_size_x)
#define tile_height (block_size_y * tile_size_y)
#define pitch (tile_width + 2)

// The file gives `power` more elements than the grid has cells; those after them are not read.
extern "C" __global__ void calculate_temp(const float* power, const float* temp, float* temp_dst, float Rx_1, float Ry_1,
                                          float Rz_1, float step_div_cap) {
    __shared__ float heat[(tile_height + 2) * pitch];
#if sh_power
    __shared__ float input[tile_height * tile_width];
#endif
    // The other blocks have nothing to do.
    if (blockIdx.y % temporal_tiling_factor != 0) return;
    const int left = blockIdx.x * tile_width;

#pragma unroll loop_unroll_factor_t
    for (int t = 0; t < temporal_tiling_factor; t++) {
        const int top = (blockIdx.y + t) * tile_height;
        if (top >= grid_height) break;

        for (int y = threadIdx.y; y < tile_height + 2; y += block_size_y)
            for (int x = threadIdx.x; x < tile_width + 2; x += block_size_x) {
                const int row = min(max(top + y - 1, 0), grid_height - 1);
                const int column = min(max(left + x - 1, 0), grid_width - 1);
                heat[y * pitch + x] = temp[row * grid_width + column];
            }
#if sh_power
        for (int y = threadIdx.y; y < tile_height; y += block_size_y)
            for (int x = threadIdx.x; x < tile_width; x += block_size_x)
                if (top + y < grid_height && left + x < grid_width)
                    input[y * tile_width + x] = power[(top + y) * grid_width + left + x];
#endif
        __syncthreads();

#pragma unroll
        for (int j = 0; j < tile_size_y; j++) {
#pragma unroll
            for (int i = 0; i < tile_size_x; i++) {
                const int y = threadIdx.y + j * block_size_y;
                const int x = threadIdx.x + i * block_size_x;
                if (top + y >= grid_height || left + x >= grid_width) continue;
                const float* here = heat + (y + 1) * pitch + x + 1;
#if sh_power
                const float watts = input[y * tile_width + x];
#else
                const float watts = power[(top + y) * grid_width + left + x];
#endif
                // Fused by hand: the compiler's own choice would differ between configs, and the last bits with it.
                const float vertical = fmaf(-2.0f, here[0], here[pitch] + here[-pitch]);
                const float horizontal = fmaf(-2.0f, here[0], here[1] + here[-1]);
                const float sunk = fmaf(ambient - here[0], Rz_1, watts);
                const float change = fmaf(vertical, Ry_1, fmaf(horizontal, Rx_1, sunk));
                temp_dst[(top + y) * grid_width + left + x] = fmaf(step_div_cap, change, here[0]);
            }
        }
        __syncthreads();
    }
}

// Dedispersion of a radio signal, with the parameters that dedispersion.T1.json tunes.
//
// Free electrons delay low frequencies. For each assumed amount of them, the dispersion measure, the channels are
// shifted back by their delays and added: output[dm][t] = sum over channels of input[channel][t + dm * shift[channel]].

#ifndef channels
#define channels 1536
#define samples 25000
#define dispersions 2048
#define most_shift 650
#endif
#define input_samples_per_channel (samples + most_shift)

__constant__ float shifts[channels];

#if tile_stride_x
#define SAMPLE(i) (threadIdx.x + (i) * block_size_x)
#else
#define SAMPLE(i) (threadIdx.x * tile_size_x + (i))
#endif
#if tile_stride_y
#define DISPERSION(j) (threadIdx.y + (j) * block_size_y)
#else
#define DISPERSION(j) (threadIdx.y * tile_size_y + (j))
#endif

#if loop_unroll_factor_channel
#define UNROLL_CHANNELS _Pragma("unroll loop_unroll_factor_channel")
#else
#define UNROLL_CHANNELS
#endif

extern "C" __global__ void dedispersion_kernel(const float* input_samples, float* output_arr, const float* all_shifts) {
    const int left = blockIdx.x * block_size_x * tile_size_x;
    const int top = blockIdx.y * block_size_y * tile_size_y;
    float sum[tile_size_y][tile_size_x] = {};

    UNROLL_CHANNELS
    for (int channel = 0; channel < channels; channel++) {
        const float* row = input_samples + (long long)channel * input_samples_per_channel;
#pragma unroll
        for (int j = 0; j < tile_size_y; j++) {
            const int delay = (int)((top + DISPERSION(j)) * shifts[channel]);
#pragma unroll
            for (int i = 0; i < tile_size_x; i++) {
                // Beside the samples and the dispersions, the last input is read: what is computed there is not written.
                sum[j][i] += row[min(left + SAMPLE(i) + delay, input_samples_per_channel - 1)];
            }
        }
    }

#pragma unroll
    for (int j = 0; j < tile_size_y; j++) {
#pragma unroll
        for (int i = 0; i < tile_size_x; i++) {
            const int dm = top + DISPERSION(j), sample = left + SAMPLE(i);
            if (dm < dispersions && sample < samples) output_arr[(long long)dm * samples + sample] = sum[j][i];
        }
    }
}

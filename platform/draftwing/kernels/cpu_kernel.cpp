// What a decoding step of a float32 model on a CPU spends its time in: products of few rows, and norms.
//
// A product reads its weights from memory once, whatever the number of rows. Every sum runs in the same order for any
// number of rows, threads and tiles, so a row's result is the same, bit for bit, in any company (rule R1). Compiled on
// the machine that runs it, so vectors are as wide as it has. All arrays are contiguous and may be unaligned.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

using std::size_t;

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int LANES = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int LANES = 4, REGISTERS = 32;
#else
constexpr int LANES = 4, REGISTERS = 16;
#endif

constexpr int SUMS = REGISTERS * 3 / 4;   // registers that hold running sums; weights and inputs take the rest
constexpr int ROWS = REGISTERS / 4;       // rows of x in one pass over a block of W
constexpr size_t DEPTH = 1024;            // inputs at a time: that many of ROWS rows stay in the first-level cache
constexpr size_t BLOCK = 128;             // outputs at a time where there are more rows: DEPTH inputs of them stay cached
constexpr size_t GRAIN = 1 << 16;         // weights; a thread with fewer costs more to wake than it saves

typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef std::int32_t Words __attribute__((vector_size(4 * LANES)));

inline Vector load(const float *from) { return *reinterpret_cast<const Vector *>(from); }

inline Vector load(const std::int8_t *from) {
    Words words;  // in two steps: compilers have no single instruction from bytes to floats, and miss the pair
    for (int lane = 0; lane < LANES; lane++) words[lane] = from[lane];
    return __builtin_convertvector(words, Vector);
}

// a * b + c, rounded alike wherever it is written: left to itself, a compiler fuses it in some copies of a template and
// not in others, and a row's result then depends on how many rows came with it.
inline float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

template <int WIDTH> inline float sum(const float *lanes) {
    if constexpr (WIDTH == 1) {
        return lanes[0];
    } else {
        constexpr int HALF = WIDTH / 2;
        typedef float Half __attribute__((vector_size(4 * HALF), aligned(4), may_alias));
        Half halves = *reinterpret_cast<const Half *>(lanes) + *reinterpret_cast<const Half *>(lanes + HALF);
        return sum<HALF>(reinterpret_cast<const float *>(&halves));
    }
}

// scales: one per output where the weights are int8, else null. bias: may be null.
template <typename Weight> struct Product {
    const Weight *weight;
    const float *scales, *bias, *x;
    float *y;
    size_t in, out;
};

// Outputs o, o + stride, ... (R of them) of rows j .. j + N: R streams far apart in memory are read faster than one.
template <int R, int N, typename Weight>
void tile(const Product<Weight> &p, size_t o, size_t stride, size_t j, size_t from, size_t to) {
    Vector sums[R][N] = {};
    const Weight *weight = p.weight + o * p.in;
    const float *x = p.x + j * p.in;
    const size_t step = stride * p.in;
    constexpr int NEAR = N < ROWS ? 3 : 2;  // many rows fill the first-level cache themselves
    size_t k = from;
    for (; k + LANES <= to; k += LANES) {
        Vector w[R];
#pragma GCC unroll 32
        for (int r = 0; r < R; r++) {
            w[r] = load(weight + r * step + k);
            __builtin_prefetch(weight + r * step + p.in + k, 0, NEAR);  // the next row: DRAM is slow to answer
        }
#pragma GCC unroll 32
        for (int n = 0; n < N; n++) {
            const Vector row = load(x + n * p.in + k);
#pragma GCC unroll 32
            for (int r = 0; r < R; r++) sums[r][n] += w[r] * row;
        }
    }
#pragma GCC unroll 32
    for (int r = 0; r < R; r++) {
        const size_t output = o + r * stride;
        const float scale = p.scales ? p.scales[output] : 1.0f;
#pragma GCC unroll 32
        for (int n = 0; n < N; n++) {
            float total = sum<LANES>(reinterpret_cast<const float *>(&sums[r][n]));
            for (size_t rest = k; rest < to; rest++)
                total = fused(float(weight[r * step + rest]), x[n * p.in + rest], total);
            float &y = p.y[(j + n) * p.out + output];
            y = fused(scale, total, from ? y : p.bias ? p.bias[output] : 0.0f);
        }
    }
}

template <int N, typename Weight>
void rows(int count, const Product<Weight> &p, size_t first, size_t last, size_t j, size_t from, size_t to) {
    if constexpr (N > 0) {
        if (count < N) return rows<N - 1>(count, p, first, last, j, from, to);
        constexpr int R = SUMS / N < 8 ? SUMS / N : 8;
        const size_t stride = (last - first) / R;
        for (size_t o = first; o < first + stride; o++) tile<R, N>(p, o, stride, j, from, to);
        for (size_t o = first + stride * R; o < last; o++) tile<1, N>(p, o, 1, j, from, to);
    }
}

template <typename Weight> void product(const Product<Weight> &p, size_t count, int threads) {
    const size_t useful = 1 + p.in * p.out / GRAIN;
    if (size_t(threads) > useful) threads = int(useful);
    const size_t share = (p.out + threads - 1) / threads;
    const size_t block = count <= ROWS || share < BLOCK ? share : BLOCK;
    const std::ptrdiff_t blocks = (p.out + block - 1) / block;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (std::ptrdiff_t b = 0; b < blocks; b++) {
        const size_t first = b * block, last = first + block < p.out ? first + block : p.out;
        for (size_t from = 0; from < p.in; from += DEPTH) {
            const size_t to = from + DEPTH < p.in ? from + DEPTH : p.in;
            for (size_t j = 0; j < count; j += ROWS) {
                rows<ROWS>(count - j < ROWS ? int(count - j) : ROWS, p, first, last, j, from, to);
            }
        }
    }
}

void norm(const float *x, const float *weight, float *y, size_t size, float epsilon) {
    Vector squares = {};
    size_t k = 0;
    for (; k + LANES <= size; k += LANES) squares += load(x + k) * load(x + k);
    float total = sum<LANES>(reinterpret_cast<const float *>(&squares));
    for (; k < size; k++) total += x[k] * x[k];
    const float scale = 1.0f / std::sqrt(total / float(size) + epsilon);
    for (k = 0; k < size; k++) y[k] = x[k] * scale * weight[k];
}

}  // namespace

// y [count, out] = x [count, in] W^T + bias, W [out, in].
extern "C" void product_float32(const float *weight, const float *bias, const float *x, float *y, size_t count,
                                size_t in, size_t out, int threads) {
    product(Product<float>{weight, nullptr, bias, x, y, in, out}, count, threads);
}

// The same for int8 weights; scales [out].
extern "C" void product_int8(const std::int8_t *weight, const float *scales, const float *bias, const float *x,
                             float *y, size_t count, size_t in, size_t out, int threads) {
    product(Product<std::int8_t>{weight, scales, bias, x, y, in, out}, count, threads);
}

// y = x / sqrt(mean(x^2) + epsilon) * weight for each of count rows; weight [size].
extern "C" void rms_norm(const float *x, const float *weight, float *y, size_t count, size_t size, float epsilon,
                         int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && count * size > GRAIN)
    for (std::ptrdiff_t row = 0; row < std::ptrdiff_t(count); row++) {
        norm(x + row * size, weight, y + row * size, size, epsilon);
    }
}

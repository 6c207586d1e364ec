// Energies of unit patches. The order of summation is part of the definition: no sum may be re-associated.

#pragma once

#include <cmath>
#include <type_traits>

#include "vectors.hpp"

namespace {

// ---- energy of a number -----------------------------------------------------------------------------------------

struct Half {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

inline float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float magnitude(float value) { return std::fabs(value); }
inline double magnitude(double value) { return std::fabs(value); }
inline float magnitude(Bfloat16 value) { return from_bits(uint32_t(value.bits & 0x7fff) << 16); }
inline float magnitude(Half value) {
  const uint32_t bits = value.bits & 0x7fff, exponent = bits >> 10;
  const float tiny = float(int32_t(bits)) * 0x1p-24f;                  // subnormal: the mantissa times 2^-24
  const uint32_t rebias = exponent == 31 ? 0x70000000u : 0x38000000u;  // infinity and NaN keep the largest exponent
  return exponent == 0 ? tiny : from_bits((bits << 13) + rebias);
}

template <class T> using Sum = decltype(magnitude(T{}));  // float, or double for double

template <bool L1, class T> inline Sum<T> energy_of(T value) {
  const Sum<T> size = magnitude(value);
  return L1 ? size : size * size;
}

// A copy of one map followed by slack, for maps at the end of a tensor, past which wide loads must not read.
template <class T> class Padded {
 public:
  explicit Padded(int64_t pixels) : pixels_(pixels), data_(pixels + SLACK) {}
  T* data() { return data_.data(); }

  // The map itself if wide loads stay inside the tensor, else its copy.
  const T* readable(const T* map, const T* end) { return end - map >= pixels_ + SLACK ? map : copy(map); }

  const T* copy(const T* map) {
    std::memcpy(static_cast<void*>(data()), map, pixels_ * sizeof(T));
    return data();
  }

 private:
  int64_t pixels_;
  std::vector<T> data_;
};

// ---- 4x4 floats in 2x2 patches: with AVX-512 a map is one register ---

inline bool is_small(const Geometry& g, size_t item) {
#ifdef __AVX512F__
  return item == 4 && g.height == 4 && g.width == 4 && g.rows == 2 && g.columns == 2;
#else
  return (void)g, (void)item, false;
#endif
}

#ifdef __AVX512F__
// Every pixel holds the energy of its patch.
template <bool L1> __m512 small_patch_sums(const float* map) {
  __m512 v = _mm512_loadu_ps(map);
  __builtin_prefetch(map + 1024);
  v = L1 ? _mm512_abs_ps(v) : _mm512_mul_ps(v, v);
  v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0xb1));  // down: rows 0 and 1, 2 and 3
  return _mm512_add_ps(v, _mm512_permute_ps(v, 0xb1));     // then across
}

// Energies of LANES maps, [patch][pitch]. Of every four maps, one pixel of each patch is kept, a different one for each
// map, so that one register holds 4 maps x 4 patches.
template <bool L1> void small_energy(const float* maps, float* energy, int64_t pitch) {
  __m512 four[4];
  for (int k = 0; k < 4; ++k, maps += 64) {
    four[k] = small_patch_sums<L1>(maps);
    four[k] = _mm512_mask_mov_ps(four[k], 0x0a0a, small_patch_sums<L1>(maps + 16));
    four[k] = _mm512_mask_mov_ps(four[k], 0x5050, small_patch_sums<L1>(maps + 32));
    four[k] = _mm512_mask_mov_ps(four[k], 0xa0a0, small_patch_sums<L1>(maps + 48));
  }
  const __m512i kept = _mm512_setr_epi32(0, 1, 4, 5, 16, 17, 20, 21, 0, 1, 4, 5, 16, 17, 20, 21);
  for (int patch = 0; patch < 4; ++patch) {
    const __m512i pick = _mm512_add_epi32(kept, _mm512_set1_epi32(patch / 2 * 8 + patch % 2 * 2));
    const __m512 low = _mm512_permutex2var_ps(four[0], pick, four[1]),
                 high = _mm512_permutex2var_ps(four[2], pick, four[3]);
    _mm512_storeu_ps(energy + patch * pitch, _mm512_mask_mov_ps(low, 0xff00, high));
  }
}

// The source of each pixel of a map, for every order. Two bits of each of the four bytes of an order make its index.
struct SmallMoves {
  int32_t from[256][16] = {};

  explicit SmallMoves(bool inverse) {
    const auto corner = [](int patch) { return patch / 2 * 8 + patch % 2 * 2; };
    for (int number = 0; number < 256; ++number)
      for (int q = 0; q < 4; ++q)
        for (int pixel : {0, 1, 4, 5}) {
          const int patch = number >> (2 * q) & 3;
          if (inverse)
            from[number][corner(patch) + pixel] = corner(q) + pixel;
          else
            from[number][corner(q) + pixel] = corner(patch) + pixel;
        }
  }
};

void small_move(const char* x, char* z, const uint8_t* order, int64_t stride, int64_t count, bool inverse) {
  static const SmallMoves moves[2] = {SmallMoves(false), SmallMoves(true)};
  for (; count > 0; --count, x += 64, z += 64, order += stride) {
    uint32_t bytes;
    std::memcpy(&bytes, order, 4);
    const __m512i from = _mm512_loadu_si512(moves[inverse].from[_pext_u32(bytes, 0x03030303)]);
    _mm512_storeu_ps(z, _mm512_permutexvar_ps(from, _mm512_loadu_ps(x)));
  }
}
#endif

// ---- energy of patches ---------------------------------------------------------------------------------------------

// Sums down VECTORS * LANES columns of a row of patches. Lines are read whole, in the order of memory, which processors
// fetch ahead.
template <int VECTORS, bool L1, class T>
inline void column_sums(const T* band, int lines, int64_t width, Sum<T>* column) {
  Sum<T> sum[VECTORS][LANES];
#pragma GCC unroll 4
  for (int v = 0; v < VECTORS; ++v)
    for (int k = 0; k < LANES; ++k) sum[v][k] = energy_of<L1>(band[v * LANES + k]);
  for (int line = 1; line < lines; ++line) {
    band += width;
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v)
      for (int k = 0; k < LANES; ++k) sum[v][k] += energy_of<L1>(band[v * LANES + k]);
  }
#pragma GCC unroll 4
  for (int v = 0; v < VECTORS; ++v)
    for (int k = 0; k < LANES; ++k) column[v * LANES + k] = sum[v][k];
}

// Energies of the unit patches of one planar map, `stride` apart: sums down the columns of a row of patches, then over
// the column sums from left to right. Reads up to LANES - 1 elements past each line.
template <bool L1, class T>
void planar_energy(const T* map, const Geometry& g, Sum<T>* column, Sum<T>* energy, int64_t stride) {
  for (int row = 0; row < g.rows; ++row) {
    const T* band = map + row * g.patch_height * g.width;
    for (int64_t first = 0; first < g.covered_width(); first += 4 * LANES) {
      const int64_t vectors = (g.covered_width() - first + LANES - 1) / LANES;
      const auto sums = [&](auto count) {
        column_sums<count(), L1, T>(band + first, g.patch_height, g.width, column + first);
      };
      if (vectors == 1)
        sums(std::integral_constant<int, 1>());
      else if (vectors == 2)
        sums(std::integral_constant<int, 2>());
      else if (vectors == 3)
        sums(std::integral_constant<int, 3>());
      else
        sums(std::integral_constant<int, 4>());
    }
    if (g.patch_width == 1) {
      for (int patch = 0; patch < g.columns; ++patch, energy += stride) *energy = column[patch];
      continue;
    }
    const Sum<T>* next = column;
    for (int patch = 0; patch < g.columns; ++patch, next += g.patch_width, energy += stride) {
      Sum<T> sum = next[0];
      for (int k = 1; k < g.patch_width; ++k) sum += next[k];
      *energy = sum;
    }
  }
}

#ifdef __AVX512F__
// The same for floats where a line of the map and all its energies fit a register each.
class NarrowEnergy {
 public:
  explicit NarrowEnergy(const Geometry& g) : g_(g) {
    for (int patch = 0; patch < g.patches() && fits(g); ++patch) {
      const int row = patch / g.columns;
      first_[patch] = row % 2 * LANES + patch % g.columns * g.patch_width;
      below_ = __mmask16(below_ | (row / 2) << patch);
    }
  }

  static bool fits(const Geometry& g) { return g.covered_width() <= LANES && g.rows <= 4 && g.patches() <= LANES; }

  template <bool L1> void operator()(const float* map, float* energy, int64_t stride) const {
    __m512 band[4] = {};
    for (int row = 0; row < g_.rows; ++row, map += g_.patch_height * g_.width) {
      band[row] = line<L1>(map);
      for (int y = 1; y < g_.patch_height; ++y) band[row] = _mm512_add_ps(band[row], line<L1>(map + y * g_.width));
    }
    __m512 sum{};
    for (int k = 0; k < g_.patch_width; ++k) {
      const __m512i from = _mm512_add_epi32(_mm512_loadu_si512(first_), _mm512_set1_epi32(k));
      const __m512 top = _mm512_permutex2var_ps(band[0], from, band[1]),
                   bottom = _mm512_permutex2var_ps(band[2], from, band[3]),
                   next = _mm512_mask_mov_ps(top, below_, bottom);
      sum = k == 0 ? next : _mm512_add_ps(sum, next);
    }
    alignas(64) float sums[LANES];
    _mm512_store_ps(sums, sum);
    for (int patch = 0; patch < g_.patches(); ++patch) energy[patch * stride] = sums[patch];
  }

 private:
  template <bool L1> static __m512 line(const float* from) {
    const __m512 value = _mm512_loadu_ps(from);
    return L1 ? _mm512_abs_ps(value) : _mm512_mul_ps(value, value);
  }

  Geometry g_;
  int32_t first_[LANES] = {};  // of the columns of each patch, in the registers of two rows of patches
  __mmask16 below_ = 0;        // patches of the third and fourth row
};
#endif

#ifdef __SSE2__
// Every pixel is a patch: energies of four maps, [pixel][pitch], transposed in blocks of 4x4.
template <bool L1> void pixel_energy(const float* maps, int64_t pixels, float* energy, int64_t pitch) {
  const __m128 sign = _mm_set1_ps(-0.0f);
  int64_t pixel = 0;
  for (; pixel + 4 <= pixels; pixel += 4) {
    __m128 block[4];
    for (int k = 0; k < 4; ++k) {
      const __m128 value = _mm_loadu_ps(maps + k * pixels + pixel);
      block[k] = L1 ? _mm_andnot_ps(sign, value) : _mm_mul_ps(value, value);
    }
    _MM_TRANSPOSE4_PS(block[0], block[1], block[2], block[3]);
    for (int k = 0; k < 4; ++k) _mm_storeu_ps(energy + (pixel + k) * pitch, block[k]);
  }
  for (; pixel < pixels; ++pixel)
    for (int k = 0; k < 4; ++k) energy[pixel * pitch + k] = energy_of<L1>(maps[k * pixels + pixel]);
}
#endif

// Energies of `count` consecutive maps of a tensor that ends at `end`. Energies of the patches of one map are
// `patch_step` apart, those of the same patch of consecutive maps `map_step`.
template <bool L1, class T>
void planar_energies(const T* maps, const T* end, int64_t count, const Geometry& g, Padded<T>& padded, Sum<T>* column,
                     Sum<T>* energy, int64_t patch_step, int64_t map_step) {
#ifdef __AVX512F__
  if constexpr (std::is_same_v<T, float>)
    if (is_small(g, sizeof(T)) && map_step == 1)
      for (; count >= LANES; count -= LANES, maps += LANES * 16, energy += LANES)
        small_energy<L1>(maps, energy, patch_step);
#endif
#ifdef __SSE2__
  if constexpr (std::is_same_v<T, float>)
    if (g.patches() == g.pixels() && map_step == 1)
      for (; count >= 4; count -= 4, maps += 4 * g.pixels(), energy += 4)
        pixel_energy<L1>(maps, g.pixels(), energy, patch_step);
#endif
#ifdef __AVX512F__
  if constexpr (std::is_same_v<T, float>)
    if (NarrowEnergy::fits(g)) {
      const NarrowEnergy narrow(g);
      for (; count > 0; --count, maps += g.pixels(), energy += map_step)
        narrow.operator()<L1>(padded.readable(maps, end), energy, patch_step);
    }
#endif
  for (; count > 0; --count, maps += g.pixels(), energy += map_step)
    planar_energy<L1>(padded.readable(maps, end), g, column, energy, patch_step);
}

// Energies of `count` channels of one interleaved image, with the channels of a patch adjacent: [patch][pitch].
template <bool L1, class T>
void interleaved_energy(const T* image, const Geometry& g, int64_t count, Sum<T>* column, Sum<T>* energy,
                        int64_t pitch) {
  for (int patch = 0; patch < g.patches(); ++patch, energy += pitch)
    for (int x = 0; x < g.patch_width; ++x) {
      const T* pixel = image + (g.corner(patch) + x) * g.channels;
      Sum<T>* sum = x == 0 ? energy : column;
      for (int64_t c = 0; c < count; ++c) sum[c] = energy_of<L1>(pixel[c]);
      for (int line = 1; line < g.patch_height; ++line) {
        pixel += g.width * g.channels;
        for (int64_t c = 0; c < count; ++c) sum[c] += energy_of<L1>(pixel[c]);
      }
      if (x > 0)
        for (int64_t c = 0; c < count; ++c) energy[c] += column[c];
    }
}

// Sums over channels by halving: e[k] + e[half + k], with an odd last one appended, until one is left. Each channel has
// `width` adjacent numbers; the sums replace those of the first channel.
template <class A> void sum_channels(A* energy, int64_t channels, int64_t width) {
  while (channels > 1) {
    const int64_t half = channels / 2;
    for (int64_t k = 0; k < half * width; ++k) energy[k] += energy[half * width + k];
    if (channels % 2) std::copy_n(energy + 2 * half * width, width, energy + half * width);
    channels = half + channels % 2;
  }
}

}  // namespace

// Patch reordering on the CPU with a plain C interface: pointers and sizes, no torch, no Python.
//
// Each group of maps is processed in one pass while it is in cache: energies of the unit patches -> order -> copy.
// Sixteen maps are ranked together, one in each lane of a vector, so most loops run over LANES; the compiler vectorises
// them, once per instruction set. The order of summation is part of the operator's definition (docs/operator.md), so no
// sum may be re-associated or contracted: build without -ffast-math and with -ffp-contract=off.
//
// geometry.hpp, vectors.hpp -> energy.hpp, networks.hpp, streaming.hpp -> ranking.hpp -> planar.hpp, interleaved.hpp
// -> this file. posing.hpp stands alone: it poses photographs.
//
// Two memory layouts: "planar" (batch, channel, row, column) and "interleaved" (batch, row, column, channel).

#include "interleaved.hpp"
#include "planar.hpp"
#include "posing.hpp"

namespace {

template <bool L1, class T>
bool forward(const void* x, void* z, uint8_t* order, const Geometry& g, int levels, bool joint, bool descending,
             bool interleaved, int threads) {
  const auto run = interleaved ? (joint ? interleaved_forward_joint<L1, T> : interleaved_forward<L1, T>)
                               : (joint ? planar_forward_joint<L1, T> : planar_forward<L1, T>);
  return run(static_cast<const T*>(x), static_cast<T*>(z), order, g, levels, descending, threads);
}

bool is_geometry(int64_t b, int64_t c, int64_t h, int64_t w, int rows, int columns) {
  return b >= 0 && c >= 0 && rows >= 1 && columns >= 1 && rows <= MOST_SIDE && columns <= MOST_SIDE && rows <= h &&
         columns <= w;
}

// If every pixel is a patch, the map is treated as one row, which is simpler to traverse.
Geometry geometry(int64_t b, int64_t c, int64_t h, int64_t w, int rows, int columns) {
  return h == rows && w == columns ? Geometry(b, c, 1, h * w, 1, rows * columns) : Geometry(b, c, h, w, rows, columns);
}

bool is_hierarchy(int rows, int columns, int levels) {
  if (levels == 1) return true;
  if (levels < 1 || levels > 4 || rows != columns) return false;
  for (int n = 2; n * n <= MOST_PAIRWISE; ++n) {
    int side = 1;
    for (int level = 0; level < levels; ++level) side *= n;
    if (side == rows) return true;
  }
  return false;
}

enum Status { DONE = 0, NO_MEMORY = 1, BAD_ARGUMENT = 2 };

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// dtype: 0 float16, 1 bfloat16, 2 float32, 3 float64. order: planar (b, c or 1, rows, columns), interleaved per channel
// (b, rows, columns, c). rows and columns are at most 16. Returns a Status.
EXPORT int patchreorder_forward(const void* x, void* z, uint8_t* order, int dtype, int64_t b, int64_t c, int64_t h,
                                int64_t w, int rows, int columns, int levels, int l1, int joint, int descending,
                                int interleaved, int threads) {
  if (!is_geometry(b, c, h, w, rows, columns) || !is_hierarchy(rows, columns, levels)) return BAD_ARGUMENT;
  const Geometry g = levels == 1 ? geometry(b, c, h, w, rows, columns) : Geometry(b, c, h, w, rows, columns);
  using Forward = bool (*)(const void*, void*, uint8_t*, const Geometry&, int, bool, bool, bool, int);
  static const Forward forwards[4][2] = {{forward<false, Half>, forward<true, Half>},
                                         {forward<false, Bfloat16>, forward<true, Bfloat16>},
                                         {forward<false, float>, forward<true, float>},
                                         {forward<false, double>, forward<true, double>}};
  if (dtype < 0 || dtype > 3) return BAD_ARGUMENT;
  return forwards[dtype][l1 != 0](x, z, order, g, levels, joint, descending, interleaved, threads) ? DONE : NO_MEMORY;
}

// Moves patch order[q] to place q, or with `inverse` patch q to place order[q]. The order must be a permutation.
EXPORT int patchreorder_permute(const void* x, void* z, const uint8_t* order, int item, int64_t b, int64_t c, int64_t h,
                                int64_t w, int rows, int columns, int joint, int inverse, int interleaved,
                                int threads) {
  if (!is_geometry(b, c, h, w, rows, columns)) return BAD_ARGUMENT;
  const Geometry g = geometry(b, c, h, w, rows, columns);
  const char* from = static_cast<const char*>(x);
  char* to = static_cast<char*>(z);
  bool done = false;
  if (!interleaved)
    done = planar_permute(from, to, order, g, item, joint, inverse, threads);
  else if (joint)
    done = interleaved_permute_joint(from, to, order, g, item, inverse, threads);
  else if (item == 2)
    done = interleaved_permute(static_cast<const uint16_t*>(x), static_cast<uint16_t*>(z), order, g, inverse, threads);
  else if (item == 4)
    done = interleaved_permute(static_cast<const uint32_t*>(x), static_cast<uint32_t*>(z), order, g, inverse, threads);
  else if (item == 8)
    done = interleaved_permute(static_cast<const uint64_t*>(x), static_cast<uint64_t*>(z), order, g, inverse, threads);
  else
    return BAD_ARGUMENT;
  return done ? DONE : NO_MEMORY;
}

// Whether each of `maps` orders contains every patch exactly once.
EXPORT int patchreorder_is_order(const uint8_t* order, int64_t maps, int64_t patches) {
  if (patches < 1 || patches > MOST_PATCHES) return 0;
  for (; maps > 0; --maps, order += patches) {
    bool seen[256] = {};
    for (int64_t q = 0; q < patches; ++q) {
      if (order[q] >= patches || seen[order[q]]) return 0;
      seen[order[q]] = true;
    }
  }
  return 1;
}

// Photographs in poses; see posing.hpp.
EXPORT int patchreorder_pose(const uint8_t* image, int64_t height, int64_t width, uint8_t* posed, int64_t rows,
                             int64_t columns, const double* matrix, const uint8_t* fill) {
  if (height < 1 || width < 1 || height > INT32_MAX / width || rows < 0 || columns < 0 || columns > INT32_MAX - RUN)
    return BAD_ARGUMENT;
  for (int i = 0; i < 6; ++i)
    if (!(matrix[i] >= -1e12 && matrix[i] <= 1e12)) return BAD_ARGUMENT;  // or places are no numbers
  pose(image, int32_t(height), int32_t(width), posed, rows, columns, matrix, fill);
  return DONE;
}

// The best build for this processor: 0 for any x86-64 or another architecture, 1 for AVX2, 2 for AVX-512.
EXPORT int patchreorder_processor() {
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("bmi2"))
    return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")) return 1;
#endif
  return 0;
}

// Planar maps: (batch, channel, row, column), torch's contiguous layout.

#pragma once

#include "ranking.hpp"
#include "streaming.hpp"

namespace {

// ---- copy, planar -----------------------------------------------------------------------------------------------

// Moves maps by the lines of their patches ("runs"), with loads and stores of a fixed width that may exceed the run to
// the right. Runs are written from left to right and top to bottom, so the excess is overwritten by the right values.
class PlanarCopy {
 public:
  PlanarCopy(const Geometry& g, int item, bool inverse)
      : g_(g),
        item_(item),
        run_(int64_t(g.patch_width) * item),
        line_(g.width * item),
        inverse_(inverse),
        ahead_(std::clamp<int64_t>(CACHE / bytes(), 1, LANES) * bytes()),
        move_(choose()) {
    for (int patch = 0; patch < g.patches(); ++patch) corner_[patch] = g.corner(patch) * item;
  }

  int64_t bytes() const { return line_ * g_.height; }

  // Moves `count` consecutive maps; their orders are `stride` apart.
  void operator()(const char* x, char* z, const uint8_t* order, int64_t stride, int64_t count) const {
    (this->*move_)(x, z, order, stride, count);
  }

 private:
  using Move = void (PlanarCopy::*)(const char*, char*, const uint8_t*, int64_t, int64_t) const;

  Move choose() const {
    if (g_.patches() == g_.pixels()) {
      return item_ == 2   ? &PlanarCopy::move_pixels<uint16_t>
             : item_ == 4 ? &PlanarCopy::move_pixels<uint32_t>
                          : &PlanarCopy::move_pixels<uint64_t>;
    }
    if (is_small(g_, size_t(item_))) return &PlanarCopy::move_small;
    if (g_.columns == 2) return choose<2>();
    if (g_.columns == 4) return choose<4>();
    return choose<0>();
  }

  template <int COLUMNS> Move choose() const {
    if (run_ <= 2) return &PlanarCopy::move<2, COLUMNS>;
    if (run_ <= 4) return &PlanarCopy::move<4, COLUMNS>;
    if (run_ <= 8) return &PlanarCopy::move<8, COLUMNS>;
    if (run_ <= 16) return &PlanarCopy::move<16, COLUMNS>;
    if (run_ <= 32) return &PlanarCopy::move<32, COLUMNS>;
    if (run_ <= 64) return &PlanarCopy::move<64, COLUMNS>;
    return &PlanarCopy::move<0, COLUMNS>;  // several loads and stores per run
  }

  void move_small(const char* x, char* z, const uint8_t* order, int64_t stride, int64_t count) const {
#ifdef __AVX512F__
    small_move(x, z, order, stride, count, inverse_);
#else
    (void)x, (void)z, (void)order, (void)stride, (void)count;  // never chosen
#endif
  }

  // Every pixel is a patch.
  template <class T>
  void move_pixels(const char* x, char* z, const uint8_t* order, int64_t stride, int64_t count) const {
    const int pixels = g_.patches();
    const T* from = reinterpret_cast<const T*>(x);
    T* to = reinterpret_cast<T*>(z);
    const bool inverse = inverse_;
    const int64_t ahead = ahead_;
#ifdef __AVX512F__
    if (sizeof(T) == 4 && pixels <= 64 && !inverse)
      return gather_few(reinterpret_cast<const float*>(x), reinterpret_cast<float*>(z), order, stride, count);
#endif
    for (; count > 0; --count, order += stride, from += pixels, to += pixels) {
      for (int64_t k = 0; k < pixels; k += 64 / sizeof(T))
        __builtin_prefetch(reinterpret_cast<const char*>(from + k) + ahead);
      if (inverse) {
#pragma GCC unroll 4
        for (int q = 0; q < pixels; ++q) to[order[q]] = from[q];
      } else {
#pragma GCC unroll 4
        for (int q = 0; q < pixels; ++q) to[q] = from[order[q]];
      }
    }
  }

#ifdef __AVX512F__
  // A map of up to 64 floats fits four registers, which permutation instructions can index.
  void gather_few(const float* x, float* z, const uint8_t* order, int64_t stride, int64_t count) const {
    const int pixels = g_.patches();
    __mmask16 inside[4];
    for (int i = 0; i < 4; ++i) inside[i] = __mmask16(_bzhi_u32(0xffff, std::clamp(pixels - 16 * i, 0, 16)));
    for (; count > 0; --count, order += stride, x += pixels, z += pixels) {
      __m512 map[4];
      for (int i = 0; i < 4; ++i) {
        map[i] = _mm512_maskz_loadu_ps(inside[i], x + 16 * i);
        __builtin_prefetch(reinterpret_cast<const char*>(x + 16 * i) + ahead_);
      }
      for (int i = 0; i < 4 && inside[i]; ++i) {
        const __m512i from = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(inside[i], order + 16 * i));
        const __m512 low = _mm512_permutex2var_ps(map[0], from, map[1]);
        const __m512 high = _mm512_permutex2var_ps(map[2], from, map[3]);
        const __mmask16 above = _mm512_test_epi32_mask(from, _mm512_set1_epi32(32));
        _mm512_mask_storeu_ps(z + 16 * i, inside[i], _mm512_mask_mov_ps(low, above, high));
      }
    }
  }
#endif

  template <int WIDTH> static void copy(char* to, const char* from, int64_t bytes) {
    if constexpr (WIDTH > 0)
      std::memcpy(to, from, WIDTH);
    else
      copy_spilling<64>(to, from, bytes);
  }

  template <int WIDTH> static void copy_spilling(char* to, const char* from, int64_t bytes) {
    for (int64_t k = 0; k < bytes; k += WIDTH) std::memcpy(to + k, from + k, WIDTH);
  }

  // Members are copied to locals, because the compiler must assume that writes through z change this object.
  // COLUMNS: the number of patches across if the compiler should know it, or 0.
  template <int WIDTH, int COLUMNS>
  void move(const char* x, char* z, const uint8_t* order, int64_t stride, int64_t count) const {
    const int64_t run = run_, line = line_;
    const int rows = g_.rows, columns = COLUMNS ? COLUMNS : g_.columns, patch_height = g_.patch_height;
    const int64_t covered = columns * run, rest = line - covered, below = (g_.height - g_.covered_height()) * line;
    const bool inverse = inverse_;
    const int64_t ahead = ahead_ - covered;
    for (; count > 0; --count, order += stride) {
      uint8_t back[MOST_PATCHES];
      if (inverse) invert(order, 1, back, 1, rows * columns);
      const uint8_t* source = inverse ? back : order;
      const char* same = x + covered;
      for (int row = 0; row < rows; ++row, source += columns) {
        const char* from[MOST_SIDE];
        for (int column = 0; column < columns; ++column) from[column] = x + corner_[source[column]];
        for (int y = 0; y < patch_height; ++y, z += line, same += line) {
          for (int column = 0; column < columns; ++column) copy<WIDTH>(z + column * run, from[column] + y * line, run);
          copy_spilling<WIDTH ? WIDTH : 64>(z + covered, same, rest);
          for (int64_t k = 0; k < line; k += 64) __builtin_prefetch(same + ahead + k);
        }
      }
      same -= covered;
      if (below) std::memcpy(z, same, below);
      z += below;
      x = same + below;
    }
  }

  Geometry g_;
  int item_;
  int64_t run_, line_;
  bool inverse_;
  int64_t ahead_;
  Move move_;
  int64_t corner_[MOST_PATCHES];
};

// PlanarCopy for maps anywhere in a tensor: maps too close to its end are moved through padded copies. If the result is
// large, all maps are assembled in cache, some at a time, and written past it.
class PlanarMover {
 public:
  PlanarMover(const Geometry& g, int item, bool inverse, const void* x_end, void* z_end)
      : copy_(g, item, inverse),
        in_(g.pixels() * item),
        x_end_(static_cast<const char*>(x_end)),
        z_end_(static_cast<char*>(z_end)) {
    const int64_t bytes = copy_.bytes();
    if (bytes <= MOST_STREAMED_MAP && is_streamed(g.images * g.channels * bytes))
      streamed_ = std::clamp<int64_t>(CACHE / bytes, 1, LANES);
    out_.resize(bytes * std::max<int64_t>(streamed_, 1) + LINE + SLACK);
  }
  PlanarMover(const PlanarMover&) = delete;
  ~PlanarMover() {
    if (streamed_) end_streaming();
  }

  void operator()(const void* x, void* z, const uint8_t* order, int64_t stride, int64_t count) {
    const char* from = static_cast<const char*>(x);
    char* to = static_cast<char*>(z);
    const int64_t bytes = copy_.bytes(), x_room = x_end_ - from - SLACK, z_room = z_end_ - to - SLACK;
    const int64_t safe = std::clamp<int64_t>((streamed_ ? x_room : std::min(x_room, z_room)) / bytes, 0, count);
    if (!streamed_) copy_(from, to, order, stride, safe);
    for (int64_t k = 0; streamed_ && k < safe; k += streamed_) {
      const int64_t some = std::min(streamed_, safe - k);
      char* line = out_.data() + (reinterpret_cast<intptr_t>(to + k * bytes - out_.data()) & (LINE - 1));
      copy_(from + k * bytes, line, order + k * stride, stride, some);
      stream(to + k * bytes, line, some * bytes, from + (k + 2 * streamed_) * bytes);
    }
    for (int64_t k = safe; k < count; ++k) {
      copy_(in_.copy(from + k * bytes), out_.data(), order + k * stride, stride, 1);
      std::memcpy(to + k * bytes, out_.data(), bytes);
    }
  }

 private:
  PlanarCopy copy_;
  Padded<char> in_;
  std::vector<char> out_;
  int64_t streamed_ = 0;  // maps written past the caches together, or 0
  const char* x_end_;
  char* z_end_;
};

// ---- forward and permute, planar --------------------------------------------------------------------------------

template <bool L1, class T>
bool planar_forward(const T* x, T* z, uint8_t* order, const Geometry& g, int levels, bool descending, int threads) {
  const int64_t maps = g.images * g.channels, pixels = g.pixels();
  const T* x_end = x + maps * pixels;
  return parallel_for(maps, pixels, threads, [&](int64_t begin, int64_t end) {
    Ranking<Sum<T>> ranking(g, levels, descending);
    PlanarMover move(g, sizeof(T), false, x_end, z + end * pixels);
    Padded<T> padded(pixels);
    std::vector<Sum<T>> column(g.width + LANES);
    const int64_t group = std::clamp<int64_t>(CACHE / (pixels * sizeof(T)), 1, LANES);
    for (int64_t first = begin; first < end; first += group) {
      const int count = int(std::min(group, end - first));
      planar_energies<L1>(x + first * pixels, x_end, count, g, padded, column.data(), ranking.energies(), LANES, 1);
      uint8_t* orders = order + first * g.patches();
      ranking.write({orders, 1, g.patches(), count});
      move(x + first * pixels, z + first * pixels, orders, g.patches(), count);
    }
  });
}

template <bool L1, class T>
bool planar_forward_joint(const T* x, T* z, uint8_t* order, const Geometry& g, int levels, bool descending,
                          int threads) {
  const int64_t pixels = g.pixels(), image = g.channels * pixels;
  const T* x_end = x + g.images * image;
  return parallel_for(g.images, image, threads, [&](int64_t begin, int64_t end) {
    Ranking<Sum<T>> ranking(g, levels, descending);
    PlanarMover move(g, sizeof(T), false, x_end, z + end * image);
    Padded<T> padded(pixels);
    std::vector<Sum<T>> column(g.width + LANES), energy(g.channels * g.patches() + 1);
    for (int64_t i = begin; i < end; ++i) {
      // The layout of the energies that is written in long runs.
      const bool by_patch = is_small(g, sizeof(T));
      const int64_t patch_step = by_patch ? g.channels : 1, map_step = by_patch ? 1 : g.patches();
      planar_energies<L1>(x + i * image, x_end, g.channels, g, padded, column.data(), energy.data(), patch_step,
                          map_step);
      if (by_patch)
        rank_by_patch(energy.data(), g, ranking);
      else
        rank_by_map(energy.data(), g, ranking);
      ranking.write({order + i * g.patches(), 1, 0, 1});
      move(x + i * image, z + i * image, order + i * g.patches(), 0, g.channels);
    }
  });
}

bool planar_permute(const char* x, char* z, const uint8_t* order, const Geometry& g, int item, bool joint, bool inverse,
                    int threads) {
  const int64_t maps = g.images * g.channels, bytes = g.pixels() * item;
  return parallel_for(maps, g.pixels(), threads, [&](int64_t begin, int64_t end) {
    PlanarMover move(g, item, inverse, x + maps * bytes, z + end * bytes);
    if (!joint)
      return move(x + begin * bytes, z + begin * bytes, order + begin * g.patches(), g.patches(), end - begin);
    for (int64_t map = begin; map < end; ++map)
      move(x + map * bytes, z + map * bytes, order + map / g.channels * g.patches(), 0, 1);
  });
}

}  // namespace

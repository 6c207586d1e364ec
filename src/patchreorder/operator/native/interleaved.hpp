// Interleaved maps: (batch, row, column, channel), torch's channels_last layout.

#pragma once

#include "ranking.hpp"

namespace {

// Moves the patches of some channels of one interleaved image, each channel by its own order.
template <class T> class InterleavedCopy {
 public:
  explicit InterleavedCopy(const Geometry& g)
      : g_(g),
        blend_(g.patches() == 4    ? &InterleavedCopy::blend<4>
               : g.patches() == 16 ? &InterleavedCopy::blend<16>
                                   : &InterleavedCopy::blend<0>) {
    for (int patch = 0; patch < g.patches(); ++patch) corner_[patch] = g.corner(patch) * g.channels;
  }

  // Patch p of channel c goes to place target[p * pitch + c]; up to MOST_PAIRWISE patches. All places of a pixel are
  // written together, so memory is read and written in long runs for every order.
  void scatter(const T* x, T* z, const T* target, int64_t pitch, int64_t count) const {
    for (int down = 0; down < g_.patch_height; ++down)
      for (int across = 0; across < g_.patch_width; ++across) {
        const int64_t pixel = (down * g_.width + across) * g_.channels;
        int64_t c = 0;
        for (; c + LANES <= count; c += LANES) (this->*blend_)(x + pixel + c, z + pixel + c, target + c, pitch);
        for (; c < count; ++c)
          for (int patch = 0; patch < g_.patches(); ++patch)
            z[corner_[target[patch * pitch + c]] + pixel + c] = x[corner_[patch] + pixel + c];
      }
    copy_uncovered(x, z, count);
  }

  // Place q of channel c gets patch source[q * pitch + c]; any number of patches.
  void gather(const T* x, T* z, const uint8_t* source, int64_t pitch, int64_t count) const {
    for (int place = 0; place < g_.patches(); ++place, source += pitch)
      for (int down = 0; down < g_.patch_height; ++down)
        for (int across = 0; across < g_.patch_width; ++across) {
          const int64_t pixel = (down * g_.width + across) * g_.channels;
          T* to = z + corner_[place] + pixel;
          for (int64_t c = 0; c < count; ++c) to[c] = x[corner_[source[c]] + pixel + c];
        }
    copy_uncovered(x, z, count);
  }

  // The inverse of gather: the patch at place q of channel c goes to place source[q * pitch + c].
  void gather_back(const T* x, T* z, const uint8_t* source, int64_t pitch, int64_t count) const {
    for (int place = 0; place < g_.patches(); ++place, source += pitch)
      for (int down = 0; down < g_.patch_height; ++down)
        for (int across = 0; across < g_.patch_width; ++across) {
          const int64_t pixel = (down * g_.width + across) * g_.channels;
          const T* from = x + corner_[place] + pixel;
          for (int64_t c = 0; c < count; ++c) z[corner_[source[c]] + pixel + c] = from[c];
        }
    copy_uncovered(x, z, count);
  }

 private:
  // Writes one pixel of every place, LANES channels at once: from every patch the lanes that go there.
  // PATCHES: their number if the compiler should know it, or 0.
  template <int PATCHES> void blend(const T* x, T* z, const T* target, int64_t pitch) const {
    const int patches = PATCHES ? PATCHES : g_.patches();
    Vector<T> pixel[MOST_PAIRWISE], goal[MOST_PAIRWISE];
    for (int patch = 0; patch < patches; ++patch) {
      pixel[patch] = load<T>(x + corner_[patch]);
      goal[patch] = load<T>(target + patch * pitch);
    }
    for (int place = 0; place < patches; ++place) {
      Vector<T> value = pixel[0];
      for (int patch = 1; patch < patches; ++patch)
        value = if_equal(goal[patch], Vector<T>::all(T(place)), pixel[patch], value);
      store(z + corner_[place], value);
    }
  }

  void copy_uncovered(const T* x, T* z, int64_t count) const {
    for (int64_t y = 0; y < g_.height; ++y)
      for (int64_t across = y < g_.covered_height() ? g_.covered_width() : 0; across < g_.width; ++across) {
        const int64_t pixel = (y * g_.width + across) * g_.channels;
        std::memcpy(z + pixel, x + pixel, count * sizeof(T));
      }
  }

  Geometry g_;
  void (InterleavedCopy::*blend_)(const T*, T*, const T*, int64_t) const;
  int64_t corner_[MOST_PATCHES];
};

// Splits an interleaved tensor into images, and images into blocks of channels if there are fewer images than threads.
// Calls make() once per thread, and its result with (image, first channel, channels).
template <class Make> bool each_block(const Geometry& g, int threads, const Make& make) {
  const int64_t tiles = (g.channels + LANES - 1) / LANES;
  const int64_t blocks = std::clamp<int64_t>(threads / std::max<int64_t>(g.images, 1), 1, std::max<int64_t>(tiles, 1));
  const int64_t block = (tiles + blocks - 1) / blocks * LANES;
  return parallel_for(g.images * blocks, g.pixels() * block, threads, [&](int64_t begin, int64_t end) {
    auto body = make();
    for (int64_t item = begin; item < end; ++item) {
      const int64_t channel = item % blocks * block, count = std::min(block, g.channels - channel);
      if (count > 0) body(item / blocks, channel, count);
    }
  });
}

template <bool L1, class T>
bool interleaved_forward(const T* x, T* z, uint8_t* order, const Geometry& g, int levels, bool descending,
                         int threads) {
  const int64_t image = g.channels * g.pixels(), pitch = g.channels + LANES;
  return each_block(g, threads, [&] {
    return [&, ranking = Ranking<Sum<T>>(g, levels, descending), copy = InterleavedCopy<Word<T>>(g),
            column = std::vector<Sum<T>>(pitch), energy = std::vector<Sum<T>>(g.patches() * pitch),
            target = std::vector<Word<T>>(g.patches() * pitch)](int64_t i, int64_t channel, int64_t count) mutable {
      const T* from = x + i * image + channel;
      uint8_t* orders = order + i * g.channels * g.patches() + channel;
      interleaved_energy<L1>(from, g, count, column.data(), energy.data(), pitch);
      for (int64_t c = 0; c < count; c += LANES) {
        for (int patch = 0; patch < g.patches(); ++patch)
          store(ranking.energies() + patch * LANES, load<Sum<T>>(&energy[patch * pitch + c]));
        ranking.write({orders + c, g.channels, 1, int(std::min<int64_t>(LANES, count - c))});
        if (g.patches() <= MOST_PAIRWISE)
          for (int patch = 0; patch < g.patches(); ++patch)
            store(&target[patch * pitch + c], ranking.template places<Word<T>>(patch));
      }
      const auto* words = reinterpret_cast<const Word<T>*>(from);
      auto* to = reinterpret_cast<Word<T>*>(z + i * image + channel);
      if (g.patches() <= MOST_PAIRWISE)
        copy.scatter(words, to, target.data(), pitch, count);
      else
        copy.gather(words, to, orders, g.channels, count);
    };
  });
}

template <class T>
bool interleaved_permute(const T* x, T* z, const uint8_t* order, const Geometry& g, bool inverse, int threads) {
  const int64_t image = g.channels * g.pixels(), pitch = g.channels + LANES;
  return each_block(g, threads, [&] {
    return [&, copy = InterleavedCopy<T>(g), target = std::vector<T>(g.patches() * pitch)](int64_t i, int64_t channel,
                                                                                           int64_t count) mutable {
      const uint8_t* orders = order + i * g.channels * g.patches() + channel;
      const T* from = x + i * image + channel;
      T* to = z + i * image + channel;
      if (g.patches() > MOST_PAIRWISE)
        return inverse ? copy.gather_back(from, to, orders, g.channels, count)
                       : copy.gather(from, to, orders, g.channels, count);
      for (int q = 0; q < g.patches(); ++q)
        for (int64_t c = 0; c < count; ++c) {
          const uint8_t patch = orders[q * g.channels + c];
          if (inverse)
            target[q * pitch + c] = patch;
          else
            target[patch * pitch + c] = T(q);
        }
      copy.scatter(from, to, target.data(), pitch, count);
    };
  });
}

// All channels of a pixel move together: the image is one planar map whose pixels are `channels` items wide.
void move_pixels(const char* x, char* z, const uint8_t* order, const Geometry& g, int item) {
  const int64_t pixel = g.channels * item, line = g.width * pixel, run = g.patch_width * pixel;
  const int64_t covered = g.columns * run, done = g.covered_height() * line;
  for (int row = 0; row < g.rows; ++row, order += g.columns)
    for (int y = 0; y < g.patch_height; ++y) {
      const int64_t start = (row * g.patch_height + y) * line;
      for (int column = 0; column < g.columns; ++column)
        std::memcpy(z + start + column * run, x + g.corner(order[column]) * pixel + y * line, run);
      std::memcpy(z + start + covered, x + start + covered, line - covered);
    }
  std::memcpy(z + done, x + done, g.height * line - done);
}

template <bool L1, class T>
bool interleaved_forward_joint(const T* x, T* z, uint8_t* order, const Geometry& g, int levels, bool descending,
                               int threads) {
  const int64_t image = g.channels * g.pixels();
  return parallel_for(g.images, image, threads, [&](int64_t begin, int64_t end) {
    Ranking<Sum<T>> ranking(g, levels, descending);
    std::vector<Sum<T>> column(g.channels), energy(g.patches() * g.channels + 1);
    for (int64_t i = begin; i < end; ++i) {
      interleaved_energy<L1>(x + i * image, g, g.channels, column.data(), energy.data(), g.channels);
      rank_by_patch(energy.data(), g, ranking);
      ranking.write({order + i * g.patches(), 1, 0, 1});
      move_pixels(reinterpret_cast<const char*>(x + i * image), reinterpret_cast<char*>(z + i * image),
                  order + i * g.patches(), g, sizeof(T));
    }
  });
}

bool interleaved_permute_joint(const char* x, char* z, const uint8_t* order, const Geometry& g, int item, bool inverse,
                               int threads) {
  const int64_t image = g.channels * g.pixels();
  return parallel_for(g.images, image, threads, [&](int64_t begin, int64_t end) {
    uint8_t back[MOST_PATCHES];
    for (int64_t i = begin; i < end; ++i) {
      const uint8_t* source = order + i * g.patches();
      if (inverse) {
        invert(source, 1, back, 1, g.patches());
        source = back;
      }
      move_pixels(x + i * image * item, z + i * image * item, source, g, item);
    }
  });
}

}  // namespace

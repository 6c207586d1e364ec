// Sizes of maps and patches, and the division of work among threads.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

constexpr int LANES = 16;      // maps ranked together
constexpr int MOST_SIDE = 16;  // unit patches a side
constexpr int MOST_PATCHES = MOST_SIDE * MOST_SIDE;
constexpr int MOST_PAIRWISE = 16;  // up to this many patches are ranked by comparing all pairs; more are sorted
constexpr int MOST_NARROW = 64;    // up to this many patches are sorted as 32-bit numbers, if their keys differ enough
constexpr int SLACK = 64;          // elements that wide loads and stores may run past the end of a map
constexpr int64_t CACHE = 24 * 1024;              // bytes of maps that stay in the first-level cache
constexpr int64_t PIXELS_PER_THREAD = 64 * 1024;  // less work than this is not worth another thread

struct Geometry {
  int64_t images, channels, height, width;
  int rows, columns;  // unit patches down and across
  int patch_height, patch_width;

  Geometry(int64_t b, int64_t c, int64_t h, int64_t w, int rows_, int columns_)
      : images(b),
        channels(c),
        height(h),
        width(w),
        rows(rows_),
        columns(columns_),
        patch_height(int(h / rows_)),
        patch_width(int(w / columns_)) {}

  int64_t pixels() const { return height * width; }
  int patches() const { return rows * columns; }
  int64_t covered_height() const { return int64_t(rows) * patch_height; }
  int64_t covered_width() const { return int64_t(columns) * patch_width; }

  // First pixel of a unit patch, counted from the start of its map.
  int64_t corner(int patch) const {
    return int64_t(patch / columns) * patch_height * width + int64_t(patch % columns) * patch_width;
  }
};

// Splits [0, items) among threads that end with this call, so that a forked process inherits none.
// Returns false if a part ran out of memory.
template <class Body> bool parallel_for(int64_t items, int64_t pixels_per_item, int threads, const Body& body) {
  const int64_t worth = std::max<int64_t>(1, items * pixels_per_item / PIXELS_PER_THREAD);
  const int64_t parts = std::max<int64_t>(1, std::min({int64_t(threads), items, worth}));
  std::atomic<bool> failed{false};
  const auto run = [&](int64_t part) {
    try {
      body(items * part / parts, items * (part + 1) / parts);
    } catch (...) {
      failed = true;
    }
  };
  std::vector<std::thread> others;
  int64_t started = 1;
  try {
    others.reserve(parts);
    for (; started < parts; ++started) others.emplace_back(run, started);
  } catch (...) {  // no more threads can be started: this one does the rest
  }
  run(0);
  for (int64_t part = started; part < parts; ++part) run(part);
  for (auto& other : others) other.join();
  return !failed;
}

}  // namespace

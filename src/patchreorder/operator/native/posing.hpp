// A photograph in a pose: bilinear interpolation, to the bit as Pillow does it in Image.transform. There every pixel
// takes the calls of two functions; here a run of pixels is taken in simple loops, which the compiler vectorises.

#pragma once

#include <cstdint>
#include <cstring>

namespace {

constexpr int RUN = 64;     // pixels
constexpr int COLOURS = 3;  // of the four bytes of a pixel; the last one is 0

inline int32_t byte_of(uint32_t pixel, int colour) { return (pixel >> (8 * colour)) & 255; }

// The centres (x, y) of `count` pixels of a row of the posed image, and where they are among those of the image.
struct PosedRun {
  double across[RUN], along[RUN];  // the part of the way from the upper left of four neighbours to the others
  int32_t corner[4][RUN];          // their indices
  uint32_t pixel[4][RUN];
  int32_t inside[RUN];  // all bits or none

  void locate(int64_t column, double down, int count, int32_t height, int32_t width, const double* m) {
    const double x_down = m[1] * down, y_down = m[4] * down, x_end = width, y_end = height;
    for (int i = 0; i < count; ++i) {
      const double right = int32_t(column) + i + 0.5;
      across[i] = m[0] * right + x_down + m[2];
      along[i] = m[3] * right + y_down + m[5];
    }
    for (int i = 0; i < count; ++i) {
      const double x = across[i], y = along[i];
      inside[i] = -((x >= 0.0) & (x < x_end) & (y >= 0.0) & (y < y_end));
    }
    split(across, corner[0], count);
    split(along, corner[2], count);
    for (int i = 0; i < count; ++i) {  // beyond an edge the nearest pixel counts
      const int32_t left = corner[0][i], top = corner[2][i];
      const int32_t first = left < 0 ? 0 : left, second = left + 1 < width ? left + 1 : width - 1;
      const int32_t above = width * (top < 0 ? 0 : top), below = width * (top + 1 < height ? top + 1 : height - 1);
      corner[0][i] = above + first;
      corner[1][i] = above + second;
      corner[2][i] = below + first;
      corner[3][i] = below + second;
    }
  }

  // Of places along a side: the pixels whose centres are before them, and which part of the way it is to the next ones.
  void split(double* places, int32_t* before, int count) const {
    for (int i = 0; i < count; ++i) {
      const double place = places[i] * double(-inside[i]) - 0.5;  // outside the image, any place will do
      const int32_t whole = int32_t(place);
      before[i] = whole - (place < whole);
      places[i] = place - before[i];
    }
  }

  void read(const uint8_t* image, int count) {
    for (int k = 0; k < 4; ++k)
      for (int i = 0; i < count; ++i) std::memcpy(&pixel[k][i], image + 4 * int64_t(corner[k][i]), 4);
  }

  void write(uint8_t* posed, uint32_t fill, int count) const {
    uint32_t found[RUN] = {};
    for (int colour = 0; colour < COLOURS; ++colour)
      for (int i = 0; i < count; ++i) {
        const int32_t a = byte_of(pixel[0][i], colour), b = byte_of(pixel[1][i], colour);
        const int32_t c = byte_of(pixel[2][i], colour), d = byte_of(pixel[3][i], colour);
        const double upper = a + (b - a) * across[i], lower = c + (d - c) * across[i];
        found[i] |= uint32_t(int32_t(upper + (lower - upper) * along[i])) << (8 * colour);
      }
    for (int i = 0; i < count; ++i) found[i] = (found[i] & uint32_t(inside[i])) | (fill & ~uint32_t(inside[i]));
    std::memcpy(posed, found, 4 * count);
  }
};

// image: (height, width, 4), posed: (rows, columns, 4). The centre (x, y) of a posed pixel shows the image at
// (m[0] x + m[1] y + m[2], m[3] x + m[4] y + m[5]), or `fill` where that is outside.
inline void pose(const uint8_t* image, int32_t height, int32_t width, uint8_t* posed, int64_t rows, int64_t columns,
                 const double* m, const uint8_t* fill) {
  uint32_t outside;
  std::memcpy(&outside, fill, 4);
  PosedRun run;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; column += RUN) {
      const int count = columns - column < RUN ? int(columns - column) : RUN;
      run.locate(column, row + 0.5, count, height, width, m);
      run.read(image, count);
      run.write(posed + 4 * (row * columns + column), outside, count);
    }
}

}  // namespace

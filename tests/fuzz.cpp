// Calls the C interface of the kernel with random sizes under AddressSanitizer: `make fuzz`. Buffers have exactly the
// needed size, so that any access outside them is reported. Every result must be a permutation that can be undone.

#include <cstdio>
#include <cstdlib>
#include <random>

#define STREAM_FROM 20000  // bytes: on any processor, half of the results are written past the caches
#include "../src/patchreorder/operator/native/kernel.cpp"

int main(int argc, char** argv) {
  const int cases = argc > 1 ? std::atoi(argv[1]) : 20000;
  std::mt19937 random(argc > 2 ? unsigned(std::atoi(argv[2])) : 0);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const int items[4] = {2, 2, 4, 8};
  for (int k = 0; k < cases; ++k) {
    const bool pixels = pick(0, 3) == 0;
    int n = pick(2, 16), levels = 1, side = n;
    while (!pixels && n <= 4 && side * n <= 16 && pick(0, 1)) side *= n, ++levels;
    const int h = pixels ? pick(1, 16) : side + pick(0, 20), w = pixels ? pick(1, 16) : side + pick(0, 20);
    const int rows = pixels ? h : side, columns = pixels ? w : side;
    const int b = pick(0, 3), c = pick(0, 35), dtype = pick(0, 3), item = items[dtype], threads = pick(1, 3);
    const bool l1 = pick(0, 1), joint = pick(0, 1), descending = pick(0, 1), interleaved = pick(0, 1);
    const size_t size = size_t(b) * c * h * w * item, orders = size_t(b) * (joint ? 1 : c) * rows * columns;
    char *x = new char[size], *z = new char[size], *back = new char[size];
    uint8_t* order = new uint8_t[orders];
    const bool few = pick(0, 1);  // few values: many ties; else any bits: NaN and infinity too
    for (size_t i = 0; i < size; ++i) x[i] = few ? char(pick(0, 1)) : char(random());
    int status = patchreorder_forward(x, z, order, dtype, b, c, h, w, rows, columns, levels, l1, joint, descending,
                                      interleaved, threads);
    status |= patchreorder_permute(z, back, order, item, b, c, h, w, rows, columns, joint, 1, interleaved, threads);
    bool good = status == 0 && std::memcmp(x, back, size) == 0;
    status = patchreorder_permute(x, back, order, item, b, c, h, w, rows, columns, joint, 0, interleaved, threads);
    good = good && status == 0 && std::memcmp(z, back, size) == 0;
    if (!interleaved || joint) good = good && patchreorder_is_order(order, joint ? b : b * c, rows * columns);
    if (!good) {
      std::printf("case %d failed: %dx%dx%dx%d, %dx%d patches, %d levels, dtype %d, l1 %d, joint %d, interleaved %d\n",
                  k, b, c, h, w, rows, columns, levels, dtype, l1, joint, interleaved);
      return 1;
    }
    delete[] x, delete[] z, delete[] back, delete[] order;

    const int height = pick(1, 40), width = pick(1, 40), lines = pick(0, 90), places = pick(0, 90);
    uint8_t *image = new uint8_t[4 * height * width], *posed = new uint8_t[4 * lines * places], fill[4] = {1, 2, 3, 4};
    for (int i = 0; i < 4 * height * width; ++i) image[i] = uint8_t(random());
    double matrix[6];
    const double sizes[4] = {0, 1, 50, 1e12};
    for (double& number : matrix) number = sizes[pick(0, 3)] * pick(-1000, 1000) / 1000;
    const int refused = patchreorder_pose(image, height, width, posed, lines, places, matrix, fill);
    delete[] image, delete[] posed;
    if (refused) return std::printf("case %d failed: a pose of %dx%d was refused\n", k, height, width), 1;
  }
  std::printf("%d cases, nothing found\n", cases);
}

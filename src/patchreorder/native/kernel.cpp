// Patch reordering on the CPU, behind a plain C interface: pointers and sizes, no torch, no Python.
//
// One pass per group of maps, while they are in cache: energies of the unit patches -> order -> copy. Sixteen maps are
// ranked together, one in each lane of a vector, so most loops below run over LANES and are left to the compiler, which
// sees this file once per instruction set. The order of every sum is part of the operator's definition (docs/operator.md),
// so nothing here may be re-associated or contracted: build without -ffast-math and with -ffp-contract=off.
//
// Two memory layouts: "planar" (batch, channel, row, column) and "interleaved" (batch, row, column, channel).

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace {

constexpr int LANES = 16;         // maps that are ranked together
constexpr int MOST_SIDE = 16;     // unit patches a side
constexpr int MOST_PATCHES = MOST_SIDE * MOST_SIDE;
constexpr int MOST_PAIRWISE = 16; // patches ranked by comparing every pair; more are sorted
constexpr int LOW_BYTE = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 0 : 7;  // of a 64-bit number in memory
constexpr int SLACK = 64;         // elements that wide loads and stores may run past the end of a map
constexpr int64_t CACHE = 24 * 1024;            // bytes of maps to keep in the first-level cache
constexpr int64_t PIXELS_PER_THREAD = 64 * 1024; // less work than this is not worth another thread

struct Geometry {
  int64_t images, channels, height, width;
  int rows, columns;          // unit patches down and across
  int patch_height, patch_width;

  Geometry(int64_t b, int64_t c, int64_t h, int64_t w, int rows_, int columns_)
      : images(b), channels(c), height(h), width(w), rows(rows_), columns(columns_),
        patch_height(int(h / rows_)), patch_width(int(w / columns_)) {}

  int64_t pixels() const { return height * width; }
  int patches() const { return rows * columns; }
  int64_t covered_height() const { return int64_t(rows) * patch_height; }
  int64_t covered_width() const { return int64_t(columns) * patch_width; }

  // First pixel of a unit patch, counted from the start of its map.
  int64_t corner(int patch) const {
    return int64_t(patch / columns) * patch_height * width + int64_t(patch % columns) * patch_width;
  }
};

// ---- vectors: one number for each lane ----------------------------------------------------------------------------

#if defined(__AVX512F__)
constexpr int REGISTER = 64;  // bytes
#elif defined(__AVX2__)
constexpr int REGISTER = 32;
#else
constexpr int REGISTER = 16;
#endif

// As many registers as LANES numbers fill, by the compilers' vector extension (which does badly on larger vectors).
template <class T> struct Vector {
  static constexpr int BYTES = LANES * sizeof(T) < REGISTER ? LANES * sizeof(T) : REGISTER;
  static constexpr int PARTS = LANES * sizeof(T) / BYTES;
  typedef T Part __attribute__((vector_size(BYTES)));
  Part part[PARTS];

  template <class F, class... Others> static Vector each(F f, const Others&... others) {
    Vector result;
    for (int i = 0; i < PARTS; ++i) result.part[i] = Part(f(others.part[i]...));
    return result;
  }

  static Vector all(T value) {
    return each([value](Part zero) { return zero + value; }, Vector{});
  }

  friend Vector operator+(const Vector& a, const Vector& b) { return each([](Part x, Part y) { return x + y; }, a, b); }
  friend Vector operator-(const Vector& a, const Vector& b) { return each([](Part x, Part y) { return x - y; }, a, b); }
  friend Vector operator*(const Vector& a, const Vector& b) { return each([](Part x, Part y) { return x * y; }, a, b); }
  friend Vector operator&(const Vector& a, const Vector& b) { return each([](Part x, Part y) { return x & y; }, a, b); }
  friend Vector operator|(const Vector& a, const Vector& b) { return each([](Part x, Part y) { return x | y; }, a, b); }
  friend Vector operator<<(const Vector& a, const Vector& b) { return each([](Part x, Part y) { return x << y; }, a, b); }
  friend Vector operator>>(const Vector& a, const Vector& b) { return each([](Part x, Part y) { return x >> y; }, a, b); }
  // -1, all bits set, where true
  friend Vector operator==(const Vector& a, const Vector& b) { return each([](Part x, Part y) { return x == y; }, a, b); }
  friend Vector operator>(const Vector& a, const Vector& b) { return each([](Part x, Part y) { return x > y; }, a, b); }

  // value where a == b, otherwise where they differ.
  template <class U> friend Vector if_equal(const Vector<U>& a, const Vector<U>& b, const Vector& value, const Vector& otherwise) {
    using Test = typename Vector<U>::Part;
    return each([](Test x, Test y, Part v, Part o) { return x == y ? v : o; }, a, b, value, otherwise);
  }
};

// Elements are loaded as numbers, or as the words they are stored in.
template <class T, class Stored = T> inline Vector<T> load(const Stored* from) {
  static_assert(sizeof(T) == sizeof(Stored));
  Vector<T> value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T> inline void store(T* to, const Vector<T>& value) { std::memcpy(to, &value, sizeof value); }

template <class To, class From> inline Vector<To> convert(const Vector<From>& from) {
  From old[LANES];
  To converted[LANES];
  store(old, from);
  for (int k = 0; k < LANES; ++k) converted[k] = To(old[k]);
  return load<To>(converted);
}

// A cache line or two: memory for the lanes of one thing.
template <class T> struct alignas(64) Row { T lane[LANES]; };

template <int BYTES> struct WordOf;
template <> struct WordOf<2> { using type = uint16_t; };
template <> struct WordOf<4> { using type = uint32_t; };
template <> struct WordOf<8> { using type = uint64_t; };
template <class T> using Word = typename WordOf<sizeof(T)>::type;

// ---- threads ----------------------------------------------------------------------------------------------------

// Splits [0, items) among threads that live for this call only, so a forked process has nothing to inherit.
// Returns false if a part ran out of memory.
template <class Body>
bool parallel_for(int64_t items, int64_t pixels_per_item, int threads, const Body& body) {
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
  } catch (...) {  // no more threads to be had: the caller does the rest
  }
  run(0);
  for (int64_t part = started; part < parts; ++part) run(part);
  for (auto& other : others) other.join();
  return !failed;
}

// ---- energy of a number -----------------------------------------------------------------------------------------

struct Half { uint16_t bits; };
struct Bfloat16 { uint16_t bits; };

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
  const float tiny = float(int32_t(bits)) * 0x1p-24f;  // no exponent: the mantissa counts 2^-24
  const uint32_t rebias = exponent == 31 ? 0x70000000u : 0x38000000u;  // infinity and NaN keep the largest exponent
  return exponent == 0 ? tiny : from_bits((bits << 13) + rebias);
}

template <class T> using Sum = decltype(magnitude(T{}));  // float, or double for double

template <bool L1, class T> inline Sum<T> energy_of(T value) {
  const Sum<T> size = magnitude(value);
  return L1 ? size : size * size;
}

// A copy of one map with slack behind it, for the maps at the end of the memory we may touch.
template <class T> class Padded {
 public:
  explicit Padded(int64_t pixels) : pixels_(pixels), data_(pixels + SLACK) {}
  T* data() { return data_.data(); }

  // The map itself where wide loads stay inside the tensor, else its copy.
  const T* readable(const T* map, const T* end) { return end - map >= pixels_ + SLACK ? map : copy(map); }

  const T* copy(const T* map) {
    std::memcpy(static_cast<void*>(data()), map, pixels_ * sizeof(T));
    return data();
  }

 private:
  int64_t pixels_;
  std::vector<T> data_;
};

// ---- 4x4 floats in 2x2 patches: with AVX-512 a map is one register ----------------------------------------------------

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
  v = L1 ? _mm512_abs_ps(v) : _mm512_mul_ps(v, v);
  v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0xb1));  // down: rows 0 and 1, 2 and 3
  return _mm512_add_ps(v, _mm512_permute_ps(v, 0xb1));     // then across
}

// Energies of LANES maps, [patch][pitch]. Of four maps at a time one pixel of each patch is kept, another for each map,
// so that one register holds 4 maps x 4 patches.
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
    const __m512 low = _mm512_permutex2var_ps(four[0], pick, four[1]), high = _mm512_permutex2var_ps(four[2], pick, four[3]);
    _mm512_storeu_ps(energy + patch * pitch, _mm512_mask_mov_ps(low, 0xff00, high));
  }
}

// The pixel that each pixel of a map comes from, for every order: its four bytes, two bits each, number a row.
struct SmallMoves {
  int32_t from[256][16] = {};

  explicit SmallMoves(bool inverse) {
    const auto corner = [](int patch) { return patch / 2 * 8 + patch % 2 * 2; };
    for (int number = 0; number < 256; ++number)
      for (int q = 0; q < 4; ++q)
        for (int pixel : {0, 1, 4, 5}) {
          const int patch = number >> (2 * q) & 3;
          if (inverse) from[number][corner(patch) + pixel] = corner(q) + pixel;
          else from[number][corner(q) + pixel] = corner(patch) + pixel;
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

// Energies of the unit patches of one planar map, `stride` apart: down the columns of a band of patches, then the column
// sums from left to right. Reads up to LANES - 1 elements past each row.
template <bool L1, class T>
void planar_energy(const T* map, const Geometry& g, Sum<T>* column, Sum<T>* energy, int64_t stride) {
  for (int row = 0; row < g.rows; ++row) {
    const T* band = map + row * g.patch_height * g.width;
    for (int64_t first = 0; first < g.covered_width(); first += LANES) {
      Sum<T> sum[LANES];
      for (int k = 0; k < LANES; ++k) sum[k] = energy_of<L1>(band[first + k]);
      for (int line = 1; line < g.patch_height; ++line)
        for (int k = 0; k < LANES; ++k) sum[k] += energy_of<L1>(band[line * g.width + first + k]);
      for (int k = 0; k < LANES; ++k) column[first + k] = sum[k];
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

// The same for `count` maps that lie one after the other in a tensor that ends at `end`; energies of a map's patches are
// `patch_step` apart, of a patch's maps `map_step`.
template <bool L1, class T>
void planar_energies(const T* maps, const T* end, int64_t count, const Geometry& g, Padded<T>& padded, Sum<T>* column,
                     Sum<T>* energy, int64_t patch_step, int64_t map_step) {
#ifdef __AVX512F__
  if constexpr (std::is_same_v<T, float>)
    if (is_small(g, sizeof(T)) && map_step == 1)
      for (; count >= LANES; count -= LANES, maps += LANES * 16, energy += LANES) small_energy<L1>(maps, energy, patch_step);
#endif
  for (; count > 0; --count, maps += g.pixels(), energy += map_step)
    planar_energy<L1>(padded.readable(maps, end), g, column, energy, patch_step);
}

// The same for `count` channels of one interleaved image, channels of a patch side by side: [patch][pitch].
template <bool L1, class T>
void interleaved_energy(const T* image, const Geometry& g, int64_t count, Sum<T>* column, Sum<T>* energy, int64_t pitch) {
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

// Sum over channels by halving: e[k] + e[half + k], an odd last one carried along, until one is left. Each channel has
// `width` numbers side by side; the sums are left in the first channel's.
template <class A> void sum_channels(A* energy, int64_t channels, int64_t width) {
  while (channels > 1) {
    const int64_t half = channels / 2;
    for (int64_t k = 0; k < half * width; ++k) energy[k] += energy[half * width + k];
    if (channels % 2) std::copy_n(energy + 2 * half * width, width, energy + half * width);
    channels = half + channels % 2;
  }
}

// ---- order ------------------------------------------------------------------------------------------------------

inline int32_t bits_of(float value) { int32_t bits; std::memcpy(&bits, &value, sizeof bits); return bits; }
inline int64_t bits_of(double value) { int64_t bits; std::memcpy(&bits, &value, sizeof bits); return bits; }

// What is compared: larger goes first, NaN before all. Energies are not negative, so they compare like their bits.
template <class A> inline auto keys_of(const A* energy, bool descending) {
  using Key = decltype(bits_of(A{}));
  const Key infinity = bits_of(std::numeric_limits<A>::infinity());
  const Vector<A> value = load<A>(energy);
  const Vector<Key> bits = load<Key>(energy), key = descending ? bits : Vector<Key>::all(infinity) - bits;
  return if_equal(value, value, key, Vector<Key>::all(infinity + 1));
}

// Where the order of a group of maps is written: of lane k, the source of place q, at data[q * place + k * lane].
struct Orders {
  uint8_t* data;
  int64_t place, lane;
  int count;  // lanes in use
};

// As many doubles as a register holds. Compilers do not use the maximum and minimum instructions for a > b ? a : b.
#if defined(__AVX512F__)
using Doubles = __m512d;
inline Doubles larger(Doubles a, Doubles b) { return _mm512_max_pd(a, b); }
inline Doubles smaller(Doubles a, Doubles b) { return _mm512_min_pd(a, b); }
#elif defined(__AVX__)
using Doubles = __m256d;
inline Doubles larger(Doubles a, Doubles b) { return _mm256_max_pd(a, b); }
inline Doubles smaller(Doubles a, Doubles b) { return _mm256_min_pd(a, b); }
#elif defined(__SSE2__)
using Doubles = __m128d;
inline Doubles larger(Doubles a, Doubles b) { return _mm_max_pd(a, b); }
inline Doubles smaller(Doubles a, Doubles b) { return _mm_min_pd(a, b); }
#else
using Doubles = double;
inline Doubles larger(Doubles a, Doubles b) { return a > b ? a : b; }
inline Doubles smaller(Doubles a, Doubles b) { return a < b ? a : b; }
#endif

// Puts the larger first.
inline void exchange(Row<double>& a, Row<double>& b) {
  Doubles *first = reinterpret_cast<Doubles*>(a.lane), *second = reinterpret_cast<Doubles*>(b.lane);
  for (size_t k = 0; k < sizeof a / sizeof(Doubles); ++k) {
    const Doubles x = first[k], y = second[k];
    first[k] = larger(x, y);
    second[k] = smaller(x, y);
  }
}

// The exchanges that sort `count` numbers: Batcher's merge exchange (Knuth 5.2.2, algorithm M).
std::vector<std::pair<uint8_t, uint8_t>> sorting_network(int count) {
  std::vector<std::pair<uint8_t, uint8_t>> exchanges;
  int top = 1;
  while (2 * top < count) top *= 2;
  for (int p = top; p > 0; p /= 2) {
    int distance = p, r = 0;
    for (int q = top;; q /= 2) {
      for (int i = 0; i + distance < count; ++i)
        if ((i & p) == r) exchanges.emplace_back(i, i + distance);
      if (q == p) break;
      distance = q - p;
      r = p;
    }
  }
  return exchanges;
}

// Ranks the unit patches of up to LANES maps. Fill energies(), [patch][LANES], then write the orders.
template <class A> class Ranking {
 public:
  Ranking(const Geometry& g, int levels, bool descending) : g_(g), n_(2), descending_(descending), levels_(levels) {
    while (levels > 1 && power(n_, levels) < g.rows) ++n_;
    for (int level = 0; level < levels; ++level) add_level(level);
    if (children_ > MOST_PAIRWISE) {
      packed_.resize(children_);
      network_ = sorting_network(children_);
    }
  }

  A* energies() { return levels_.back().energy[0].lane; }  // [patch][LANES]

  // After write(), with few patches: the place of a patch.
  template <class W> Vector<W> places(int patch) const {
    return convert<W>(load<Key>(levels_.back().place[patch].lane));
  }

  void write(Orders out) {
    if (children_ > MOST_PAIRWISE) return sort(out);
    for (size_t k = levels_.size() - 1; k > 0; --k) sum_children(levels_[k], levels_[k - 1]);
    for (size_t k = 0; k < levels_.size(); ++k) place_level(levels_[k], k ? &levels_[k - 1] : nullptr);
    if (out.lane == 1 && out.count == LANES) return write_interleaved(out);
    if (sizeof(Key) == 4 && g_.patches() == 4 && out.lane == 4 && out.count == LANES) return write_words(out);
    const Key* place = levels_.back().place[0].lane;
    for (int patch = 0; patch < g_.patches(); ++patch, place += LANES)
      for (int k = 0; k < out.count; ++k) out.data[place[k] * out.place + k * out.lane] = uint8_t(patch);
  }

 private:
  using Key = decltype(bits_of(A{}));

  struct Level {
    int across, size;         // patches across the map, unit patches across one of them
    std::vector<int> child;   // where the children of each parent are in the next two, parent by parent
    std::vector<Row<A>> energy;
    std::vector<Row<Key>> place;  // in unit patches
  };

  static int power(int base, int exponent) { return exponent == 0 ? 1 : base * power(base, exponent - 1); }

  void add_level(int level) {
    Level& it = levels_[level];
    const int wide = levels_.size() == 1 ? g_.columns : n_, high = levels_.size() == 1 ? g_.rows : n_;
    it.across = levels_.size() == 1 ? g_.columns : power(n_, level + 1);
    it.size = g_.columns / it.across;
    const int parents = it.across / wide;
    for (int i = 0; i < parents; ++i)
      for (int j = 0; j < parents; ++j)
        for (int c = 0; c < wide * high; ++c)
          it.child.push_back((i * high + c / wide) * it.across + j * wide + c % wide);
    it.energy.resize(it.child.size());
    it.place.resize(it.child.size());
    wide_ = wide;
    children_ = wide * high;
  }

  void sum_children(const Level& fine, Level& coarse) {
    const int* child = fine.child.data();
    for (auto& parent : coarse.energy) {
      Vector<A> sum = load<A>(fine.energy[child[0]].lane);
      for (int c = 1; c < children_; ++c) sum = sum + load<A>(fine.energy[child[c]].lane);
      store(parent.lane, sum);
      child += children_;
    }
  }

  // The places of a level's patches: their parent's place and a step for their rank inside it.
  void place_level(Level& level, const Level* above) {
    const int* child = level.child.data();
    for (size_t parent = 0; parent * children_ < level.child.size(); ++parent, child += children_) {
      Vector<Key> key[MOST_PAIRWISE], rank[MOST_PAIRWISE];
      for (int c = 0; c < children_; ++c) key[c] = keys_of(level.energy[child[c]].lane, descending_);
      rank_by_pairs(key, rank);
      const Vector<Key> start = above ? load<Key>(above->place[parent].lane) : Vector<Key>{};
      for (int c = 0; c < children_; ++c) store(level.place[child[c]].lane, start + step_for(rank[c], level.size));
    }
  }

  void rank_by_pairs(const Vector<Key>* key, Vector<Key>* rank) const {
    for (int c = 0; c < children_; ++c) rank[c] = Vector<Key>::all(c);  // as if all were equal
    for (int a = 0; a < children_; ++a)
      for (int b = a + 1; b < children_; ++b) {
        const Vector<Key> swap = key[b] > key[a];  // -1 where true
        rank[a] = rank[a] - swap;
        rank[b] = rank[b] + swap;
      }
  }

  Vector<Key> step_for(Vector<Key> rank, int size) const {
    const auto all = [](Key value) { return Vector<Key>::all(value); };
    const Key reciprocal = (65536 + wide_ - 1) / wide_;  // rank / wide without a division: exact up to 16
    const Vector<Key> row = rank * all(reciprocal) >> all(16), column = rank - row * all(wide_);
    return (row * all(g_.columns) + column) * all(size);
  }

  // Vector forms of the loop at the end of write(): a lane's bytes lie side by side ...
  void write_interleaved(Orders out) const {
    for (int q = 0; q < g_.patches(); ++q) {
      Vector<Key> source{};
      for (int patch = 1; patch < g_.patches(); ++patch)
        source = source | ((load<Key>(levels_.back().place[patch].lane) == Vector<Key>::all(q)) & Vector<Key>::all(patch));
      store(out.data + q * out.place, convert<uint8_t>(source));
    }
  }

  // ... or the four bytes of a map make one word.
  void write_words(Orders out) const {
    Vector<Key> word{};
    for (int patch = 1; patch < 4; ++patch)
      word = word | (Vector<Key>::all(patch) << (load<Key>(levels_.back().place[patch].lane) << Vector<Key>::all(3)));
    std::memcpy(out.data, &word, sizeof word);
  }

  // More than MOST_PAIRWISE patches, one level. A key and its patch share 64 bits, so that ties keep their order, and are
  // sorted as doubles, whose minimum and maximum every processor has: keys are at most 0x7f800001, and with one added to
  // the exponent all these numbers are normal.
  void sort(Orders out) {
    if constexpr (sizeof(Key) == 4) {
      const int count = children_;
      Row<double>* packed = packed_.data();
      for (int patch = 0; patch < count; ++patch) {
        const auto key = convert<int64_t>(keys_of(energies() + patch * LANES, descending_)), one = Vector<int64_t>::all(0x100000);
        const auto bits = (key + one << Vector<int64_t>::all(32)) + Vector<int64_t>::all(MOST_PATCHES - 1 - patch);
        std::memcpy(packed[patch].lane, &bits, sizeof bits);
      }
      for (const auto& [a, b] : network_) exchange(packed[a], packed[b]);
      for (int k = 0; k < out.count; ++k)
#pragma GCC unroll 4
        for (int q = 0; q < count; ++q) {
          uint8_t low;
          std::memcpy(&low, reinterpret_cast<const char*>(&packed[q].lane[k]) + LOW_BYTE, 1);
          out.data[q * out.place + k * out.lane] = uint8_t(MOST_PATCHES - 1 - low);
        }
    } else {
      sort_one_by_one(out);
    }
  }

  void sort_one_by_one(Orders out) {
    std::vector<Row<Key>> key(children_);
    for (int patch = 0; patch < children_; ++patch) store(key[patch].lane, keys_of(energies() + patch * LANES, descending_));
    uint8_t source[MOST_PATCHES];
    for (int k = 0; k < out.count; ++k) {
      for (int patch = 0; patch < children_; ++patch) source[patch] = uint8_t(patch);
      std::stable_sort(source, source + children_, [&](int a, int b) { return key[a].lane[k] > key[b].lane[k]; });
      for (int q = 0; q < children_; ++q) out.data[q * out.place + k * out.lane] = source[q];
    }
  }

  Geometry g_;
  int n_, wide_ = 0, children_ = 0;  // patches a side, across, and in all inside one patch of the level above
  bool descending_;
  std::vector<Level> levels_;
  std::vector<Row<double>> packed_;  // key and source
  std::vector<std::pair<uint8_t, uint8_t>> network_;
};

// Fill the first lane of a ranking from the energies of all maps of an image: [patch][channels] ...
template <class A> void rank_by_patch(A* energy, const Geometry& g, Ranking<A>& ranking) {
  for (int patch = 0; patch < g.patches(); ++patch, energy += g.channels) {
    sum_channels(energy, g.channels, 1);
    ranking.energies()[patch * LANES] = g.channels ? *energy : A(0);
  }
}

// ... or [channels][patch].
template <class A> void rank_by_map(A* energy, const Geometry& g, Ranking<A>& ranking) {
  sum_channels(energy, g.channels, g.patches());
  for (int patch = 0; patch < g.patches(); ++patch) ranking.energies()[patch * LANES] = g.channels ? energy[patch] : A(0);
}

void invert(const uint8_t* order, int64_t stride, uint8_t* inverse, int64_t inverse_stride, int patches) {
  for (int q = 0; q < patches; ++q) inverse[order[q * stride] * inverse_stride] = uint8_t(q);
}

// ---- copy, planar -----------------------------------------------------------------------------------------------

// Moves maps by rows of patches ("runs"), each with loads and stores of a fixed width that may spill to the right. Runs
// are written from left to right and top to bottom, so what spilled is overwritten by what belongs there.
class PlanarCopy {
 public:
  PlanarCopy(const Geometry& g, int item, bool inverse)
      : g_(g), item_(item), run_(int64_t(g.patch_width) * item), line_(g.width * item), inverse_(inverse), ahead_(std::clamp<int64_t>(CACHE / bytes(), 1, LANES) * bytes()), move_(choose()) {
    for (int patch = 0; patch < g.patches(); ++patch) corner_[patch] = int32_t(g.corner(patch) * item);
  }

  int64_t bytes() const { return line_ * g_.height; }

  // Moves `count` maps that lie one after the other; orders are `stride` apart.
  void operator()(const char* x, char* z, const uint8_t* order, int64_t stride, int64_t count) const {
    (this->*move_)(x, z, order, stride, count);
  }

 private:
  using Move = void (PlanarCopy::*)(const char*, char*, const uint8_t*, int64_t, int64_t) const;

  Move choose() const {
    if (g_.patches() == g_.pixels()) {
      return item_ == 2 ? &PlanarCopy::move_pixels<uint16_t> : item_ == 4 ? &PlanarCopy::move_pixels<uint32_t> : &PlanarCopy::move_pixels<uint64_t>;
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
    return &PlanarCopy::move<0, COLUMNS>;  // several loads and stores a run
  }

  void move_small(const char* x, char* z, const uint8_t* order, int64_t stride, int64_t count) const {
#ifdef __AVX512F__
    small_move(x, z, order, stride, count, inverse_);
#else
    (void)x, (void)z, (void)order, (void)stride, (void)count;  // never chosen
#endif
  }

  // Every pixel is a patch.
  template <class T> void move_pixels(const char* x, char* z, const uint8_t* order, int64_t stride, int64_t count) const {
    const int pixels = g_.patches();
    const T* from = reinterpret_cast<const T*>(x);
    T* to = reinterpret_cast<T*>(z);
    const bool inverse = inverse_;
    const int64_t ahead = ahead_;
    for (; count > 0; --count, order += stride, from += pixels, to += pixels) {
      for (int64_t k = 0; k < pixels; k += 64 / sizeof(T)) __builtin_prefetch(reinterpret_cast<const char*>(from + k) + ahead);
      if (inverse) {
#pragma GCC unroll 4
        for (int q = 0; q < pixels; ++q) to[order[q]] = from[q];
      } else {
#pragma GCC unroll 4
        for (int q = 0; q < pixels; ++q) to[q] = from[order[q]];
      }
    }
  }

  template <int WIDTH> static void copy(char* to, const char* from, int64_t bytes) {
    if constexpr (WIDTH > 0) std::memcpy(to, from, WIDTH);
    else copy_spilling<64>(to, from, bytes);
  }

  template <int WIDTH> static void copy_spilling(char* to, const char* from, int64_t bytes) {
    for (int64_t k = 0; k < bytes; k += WIDTH) std::memcpy(to + k, from + k, WIDTH);
  }

  // Everything is held in locals: bytes written through z could be any member of this object to the compiler.
  // COLUMNS: a number of patches across known to the compiler, or 0.
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
  int32_t corner_[MOST_PATCHES];
};

// The same for maps anywhere in a tensor: those too near the end of the memory take a detour.
class PlanarMover {
 public:
  PlanarMover(const Geometry& g, int item, bool inverse, const void* x_end, void* z_end)
      : copy_(g, item, inverse), in_(g.pixels() * item), out_(g.pixels() * item),
        x_end_(static_cast<const char*>(x_end)), z_end_(static_cast<char*>(z_end)) {}

  void operator()(const void* x, void* z, const uint8_t* order, int64_t stride, int64_t count) {
    const char* from = static_cast<const char*>(x);
    char* to = static_cast<char*>(z);
    const int64_t bytes = copy_.bytes(), room = std::min(x_end_ - from, z_end_ - to) - SLACK;
    const int64_t safe = std::clamp<int64_t>(room / bytes, 0, count);
    copy_(from, to, order, stride, safe);
    for (int64_t k = safe; k < count; ++k) {
      copy_(in_.copy(from + k * bytes), out_.data(), order + k * stride, stride, 1);
      std::memcpy(to + k * bytes, out_.data(), bytes);
    }
  }

 private:
  PlanarCopy copy_;
  Padded<char> in_, out_;
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
bool planar_forward_joint(const T* x, T* z, uint8_t* order, const Geometry& g, int levels, bool descending, int threads) {
  const int64_t pixels = g.pixels(), image = g.channels * pixels;
  const T* x_end = x + g.images * image;
  return parallel_for(g.images, image, threads, [&](int64_t begin, int64_t end) {
    Ranking<Sum<T>> ranking(g, levels, descending);
    PlanarMover move(g, sizeof(T), false, x_end, z + end * image);
    Padded<T> padded(pixels);
    std::vector<Sum<T>> column(g.width + LANES), energy(g.channels * g.patches() + 1);
    for (int64_t i = begin; i < end; ++i) {
      // Whichever order is written in long runs.
      const bool by_patch = is_small(g, sizeof(T));
      const int64_t patch_step = by_patch ? g.channels : 1, map_step = by_patch ? 1 : g.patches();
      planar_energies<L1>(x + i * image, x_end, g.channels, g, padded, column.data(), energy.data(), patch_step, map_step);
      if (by_patch) rank_by_patch(energy.data(), g, ranking);
      else rank_by_map(energy.data(), g, ranking);
      ranking.write({order + i * g.patches(), 1, 0, 1});
      move(x + i * image, z + i * image, order + i * g.patches(), 0, g.channels);
    }
  });
}

bool planar_permute(const char* x, char* z, const uint8_t* order, const Geometry& g, int item, bool joint, bool inverse, int threads) {
  const int64_t maps = g.images * g.channels, bytes = g.pixels() * item;
  return parallel_for(maps, g.pixels(), threads, [&](int64_t begin, int64_t end) {
    PlanarMover move(g, item, inverse, x + maps * bytes, z + end * bytes);
    if (!joint) return move(x + begin * bytes, z + begin * bytes, order + begin * g.patches(), g.patches(), end - begin);
    for (int64_t map = begin; map < end; ++map)
      move(x + map * bytes, z + map * bytes, order + map / g.channels * g.patches(), 0, 1);
  });
}

// ---- interleaved ------------------------------------------------------------------------------------------------

// Moves the patches of `count` channels of one interleaved image, each channel by its own order.
template <class T> class InterleavedCopy {
 public:
  explicit InterleavedCopy(const Geometry& g)
      : g_(g), blend_(g.patches() == 4    ? &InterleavedCopy::blend<4>
                       : g.patches() == 16 ? &InterleavedCopy::blend<16>
                                           : &InterleavedCopy::blend<0>) {
    for (int patch = 0; patch < g.patches(); ++patch) corner_[patch] = g.corner(patch) * g.channels;
  }

  // Patch p of channel c goes to place target[p * pitch + c]; few patches. All places of a pixel are written together,
  // so memory is read and written in long runs whatever the orders are.
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

  // Place q of channel c takes patch source[q * pitch + c]; any number of patches.
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

 private:
  // One pixel of every place, LANES channels at once: from every patch the lanes that go there.
  // PATCHES: their number where the compiler should know it, or 0.
  template <int PATCHES> void blend(const T* x, T* z, const T* target, int64_t pitch) const {
    const int patches = PATCHES ? PATCHES : g_.patches();
    Vector<T> pixel[MOST_PAIRWISE], goal[MOST_PAIRWISE];
    for (int patch = 0; patch < patches; ++patch) {
      pixel[patch] = load<T>(x + corner_[patch]);
      goal[patch] = load<T>(target + patch * pitch);
    }
    for (int place = 0; place < patches; ++place) {
      Vector<T> value = pixel[0];
      for (int patch = 1; patch < patches; ++patch) value = if_equal(goal[patch], Vector<T>::all(T(place)), pixel[patch], value);
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

// Splits an interleaved tensor into images, and images into blocks of channels where there are fewer of them than threads;
// calls make() once a thread, and what it returns with (image, first channel, channels).
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
bool interleaved_forward(const T* x, T* z, uint8_t* order, const Geometry& g, int levels, bool descending, int threads) {
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
      if (g.patches() <= MOST_PAIRWISE) copy.scatter(words, to, target.data(), pitch, count);
      else copy.gather(words, to, orders, g.channels, count);
    };
  });
}

template <class T>
bool interleaved_permute(const T* x, T* z, const uint8_t* order, const Geometry& g, bool inverse, int threads) {
  const int64_t image = g.channels * g.pixels(), pitch = g.channels + LANES;
  return each_block(g, threads, [&] {
    return [&, copy = InterleavedCopy<T>(g), target = std::vector<T>(g.patches() * pitch),
            source = std::vector<uint8_t>(g.patches() * pitch)](int64_t i, int64_t channel, int64_t count) mutable {
      const uint8_t* orders = order + i * g.channels * g.patches() + channel;
      const bool few = g.patches() <= MOST_PAIRWISE;
      for (int q = 0; q < g.patches(); ++q)
        for (int64_t c = 0; c < count; ++c) {
          const uint8_t patch = orders[q * g.channels + c];
          if (few && inverse) target[q * pitch + c] = patch;
          else if (few) target[patch * pitch + c] = T(q);
          else if (inverse) source[patch * pitch + c] = uint8_t(q);
          else source[q * pitch + c] = patch;
        }
      const T* from = x + i * image + channel;
      T* to = z + i * image + channel;
      if (few) copy.scatter(from, to, target.data(), pitch, count);
      else copy.gather(from, to, source.data(), pitch, count);
    };
  });
}

// All channels of a pixel move together: an image is one planar map whose pixels are `channels` items wide.
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
bool interleaved_forward_joint(const T* x, T* z, uint8_t* order, const Geometry& g, int levels, bool descending, int threads) {
  const int64_t image = g.channels * g.pixels();
  return parallel_for(g.images, image, threads, [&](int64_t begin, int64_t end) {
    Ranking<Sum<T>> ranking(g, levels, descending);
    std::vector<Sum<T>> column(g.channels), energy(g.patches() * g.channels + 1);
    for (int64_t i = begin; i < end; ++i) {
      interleaved_energy<L1>(x + i * image, g, g.channels, column.data(), energy.data(), g.channels);
      rank_by_patch(energy.data(), g, ranking);
      ranking.write({order + i * g.patches(), 1, 0, 1});
      move_pixels(reinterpret_cast<const char*>(x + i * image), reinterpret_cast<char*>(z + i * image), order + i * g.patches(), g, sizeof(T));
    }
  });
}

bool interleaved_permute_joint(const char* x, char* z, const uint8_t* order, const Geometry& g, int item, bool inverse, int threads) {
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

template <bool L1, class T>
bool forward(const void* x, void* z, uint8_t* order, const Geometry& g, int levels, bool joint, bool descending, bool interleaved, int threads) {
  const auto run = interleaved ? (joint ? interleaved_forward_joint<L1, T> : interleaved_forward<L1, T>)
                               : (joint ? planar_forward_joint<L1, T> : planar_forward<L1, T>);
  return run(static_cast<const T*>(x), static_cast<T*>(z), order, g, levels, descending, threads);
}

bool is_geometry(int64_t b, int64_t c, int64_t h, int64_t w, int rows, int columns) {
  return b >= 0 && c >= 0 && rows >= 1 && columns >= 1 && rows <= MOST_SIDE && columns <= MOST_SIDE && rows <= h && columns <= w;
}

// Where every pixel is a patch the map may as well be one row, which is simpler to walk.
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
// (b, rows, columns, c). rows and columns at most 16. Returns a Status.
EXPORT int patchreorder_forward(const void* x, void* z, uint8_t* order, int dtype, int64_t b, int64_t c, int64_t h, int64_t w,
                                int rows, int columns, int levels, int l1, int joint, int descending, int interleaved, int threads) {
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

// Moves patch order[q] to place q, or with `inverse` patch q to place order[q]. The caller vouches for the order.
EXPORT int patchreorder_permute(const void* x, void* z, const uint8_t* order, int item, int64_t b, int64_t c, int64_t h, int64_t w,
                                int rows, int columns, int joint, int inverse, int interleaved, int threads) {
  if (!is_geometry(b, c, h, w, rows, columns)) return BAD_ARGUMENT;
  const Geometry g = geometry(b, c, h, w, rows, columns);
  const char* from = static_cast<const char*>(x);
  char* to = static_cast<char*>(z);
  bool done = false;
  if (!interleaved) done = planar_permute(from, to, order, g, item, joint, inverse, threads);
  else if (joint) done = interleaved_permute_joint(from, to, order, g, item, inverse, threads);
  else if (item == 2) done = interleaved_permute(static_cast<const uint16_t*>(x), static_cast<uint16_t*>(z), order, g, inverse, threads);
  else if (item == 4) done = interleaved_permute(static_cast<const uint32_t*>(x), static_cast<uint32_t*>(z), order, g, inverse, threads);
  else if (item == 8) done = interleaved_permute(static_cast<const uint64_t*>(x), static_cast<uint64_t*>(z), order, g, inverse, threads);
  else return BAD_ARGUMENT;
  return done ? DONE : NO_MEMORY;
}

// Whether each of `maps` orders names every patch exactly once.
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

// The best of our builds for this processor: 0 any x86-64 or another architecture, 1 AVX2, 2 AVX-512.
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

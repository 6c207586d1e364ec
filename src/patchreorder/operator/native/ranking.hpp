// Orders from energies, for up to LANES maps at once.

#pragma once

#include <limits>
#include <utility>

#include "energy.hpp"

namespace {

inline int32_t bits_of(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline int64_t bits_of(double value) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Sort keys: the patch with the larger key goes first, NaN before all. Energies are not negative, so their bits sort
// like the numbers.
template <class A> inline auto keys_of(const A* energy, bool descending) {
  using Key = decltype(bits_of(A{}));
  const Key infinity = bits_of(std::numeric_limits<A>::infinity());
  const Vector<A> value = load<A>(energy);
  const Vector<Key> bits = load<Key>(energy), key = descending ? bits : Vector<Key>::all(infinity) - bits;
  return if_equal(value, value, key, Vector<Key>::all(infinity + 1));
}

// The memory for the orders of a group of maps: the source of place q in lane k is data[q * place + k * lane].
struct Orders {
  uint8_t* data;
  int64_t place, lane;
  int count;  // lanes in use
};

// The doubles of one register. Compilers do not use the maximum and minimum instructions for a > b ? a : b.
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

// Two rows to compare, as offsets in bytes from the first row.
struct Exchange {
  uint16_t first, second;
};

// Puts the larger numbers first.
inline void exchange(char* rows, Exchange pair) {
  Doubles *first = reinterpret_cast<Doubles*>(rows + pair.first),
          *second = reinterpret_cast<Doubles*>(rows + pair.second);
#pragma GCC unroll 8
  for (size_t k = 0; k < sizeof(Row<double>) / sizeof(Doubles); ++k) {
    const Doubles a = first[k], b = second[k];
    first[k] = larger(a, b);
    second[k] = smaller(a, b);
  }
}

// The sorting network for `count` rows: Batcher's merge exchange (Knuth 5.2.2, algorithm M).
std::vector<Exchange> sorting_network(int count) {
  constexpr int ROW = sizeof(Row<double>);
  std::vector<Exchange> exchanges;
  int top = 1;
  while (2 * top < count) top *= 2;
  for (int p = top; p > 0; p /= 2) {
    int distance = p, r = 0;
    for (int q = top;; q /= 2) {
      for (int i = 0; i + distance < count; ++i)
        if ((i & p) == r) exchanges.push_back({uint16_t(i * ROW), uint16_t((i + distance) * ROW)});
      if (q == p) break;
      distance = q - p;
      r = p;
    }
  }
  return exchanges;
}

// Ranks the unit patches of up to LANES maps: fill energies(), [patch][LANES], then call write().
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

  // The place of a patch after write(), for up to MOST_PAIRWISE patches.
  template <class W> Vector<W> places(int patch) const {
    return convert<W>(load<Key>(levels_.back().place[patch].lane));
  }

  void write(const Orders& out) {
    if (children_ > MOST_PAIRWISE) return sizeof(A) == 4 ? sort_lanes(out) : sort_one_by_one(out);
    for (size_t k = levels_.size() - 1; k > 0; --k) sum_children(levels_[k], levels_[k - 1]);
    for (size_t k = 0; k < levels_.size(); ++k) place_level(levels_[k], k ? &levels_[k - 1] : nullptr);
    if (out.lane == 1 && out.count == LANES) return write_interleaved(out);
    if (sizeof(Key) == 4 && g_.patches() == 4 && out.lane == 4 && out.count == LANES) return write_words(out);
    for (int k = 0; k < out.count; ++k) {
      uint8_t* to = out.data + k * out.lane;
      for (int patch = 0; patch < g_.patches(); ++patch)
        to[levels_.back().place[patch].lane[k] * out.place] = uint8_t(patch);
    }
  }

 private:
  using Key = decltype(bits_of(A{}));

  struct Level {
    int across, size;        // patches across the map, unit patches across one of them
    std::vector<int> child;  // indices of the children in the next two members, parent by parent
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

  // The place of every patch of a level: the place of its parent plus a step for its rank among the children.
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
    for (int c = 0; c < children_; ++c) rank[c] = Vector<Key>::all(c);  // the ranks if all were equal
    for (int a = 0; a < children_; ++a) {
      Vector<Key> mine = rank[a];
      for (int b = a + 1; b < children_; ++b) {
        const Vector<Key> swap = key[b] > key[a];  // -1 where true
        mine = mine - swap;
        rank[b] = rank[b] + swap;
      }
      rank[a] = mine;
    }
  }

  Vector<Key> step_for(Vector<Key> rank, int size) const {
    if (levels_.size() == 1) return rank;
    const auto all = [](Key value) { return Vector<Key>::all(value); };
    const Key reciprocal = (65536 + wide_ - 1) / wide_;  // rank / wide without a division: exact up to 16
    const Vector<Key> row = rank * all(reciprocal) >> all(16), column = rank - row * all(wide_);
    return (row * all(g_.columns) + column) * all(size);
  }

  // Vector forms of the loop at the end of write(): the bytes of the lanes are adjacent ...
  void write_interleaved(const Orders& out) const {
    for (int q = 0; q < g_.patches(); ++q) {
      Vector<Key> source{};
      for (int patch = 1; patch < g_.patches(); ++patch)
        source =
            source | ((load<Key>(levels_.back().place[patch].lane) == Vector<Key>::all(q)) & Vector<Key>::all(patch));
      store(out.data + q * out.place, convert<uint8_t>(source));
    }
  }

  // ... or the four bytes of a map form one word.
  void write_words(const Orders& out) const {
    Vector<Key> word{};
    for (int patch = 1; patch < 4; ++patch)
      word = word | (Vector<Key>::all(patch) << (load<Key>(levels_.back().place[patch].lane) << Vector<Key>::all(3)));
    std::memcpy(out.data, &word, sizeof word);
  }

  // More than MOST_PAIRWISE patches, one level. A key and its patch share 64 bits, so that ties keep their order. These
  // are sorted as doubles, because every processor has their minimum and maximum. Keys are at most 0x7f800001; one is
  // added to the exponent so that all of them are normal.
  void sort_lanes(const Orders& out) {
    Row<double>* packed = packed_.data();
    for (int patch = 0; patch < children_; ++patch) {
      const auto key = convert<int64_t>(keys_of(energies() + patch * LANES, descending_)),
                 one = Vector<int64_t>::all(0x100000);
      const auto bits = (key + one << Vector<int64_t>::all(32)) + Vector<int64_t>::all(MOST_PATCHES - 1 - patch);
      std::memcpy(packed[patch].lane, &bits, sizeof bits);
    }
    for (const Exchange& pair : network_) exchange(reinterpret_cast<char*>(packed), pair);
    write_sorted(out);
  }

  // The patch is in the lowest byte of each packed number.
#ifdef __AVX512F__
  void write_sorted(const Orders& out) const {
    const bool planar = out.place == 1;
    for (int first = 0; first < children_; first += 16) {
      const int rows = std::min(16, children_ - first);
      __m128i bytes[16] = {};
      for (int q = 0; q < rows; ++q) {
        const __m128i low = _mm512_cvtepi64_epi8(_mm512_load_si512(packed_[first + q].lane));
        const __m128i high = _mm512_cvtepi64_epi8(_mm512_load_si512(packed_[first + q].lane + 8));
        bytes[q] = _mm_xor_si128(_mm_unpacklo_epi64(low, high), _mm_set1_epi8(-1));  // MOST_PATCHES - 1 - low byte
      }
      if (planar) transpose(bytes);  // the bytes of a map become adjacent
      uint8_t* to = out.data + first * out.place;
      const __mmask16 wanted = __mmask16(_bzhi_u32(0xffff, planar ? rows : out.count));
      for (int row = 0; row < (planar ? out.count : rows); ++row, to += planar ? out.lane : out.place)
        _mm_mask_storeu_epi8(to, wanted, bytes[row]);
    }
  }

  // Transposes 16x16 bytes: four times, every row is interleaved with the one eight rows below.
  static void transpose(__m128i* rows) {
#pragma GCC unroll 4
    for (int round = 0; round < 4; ++round) {
      __m128i next[16];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        next[2 * i] = _mm_unpacklo_epi8(rows[i], rows[i + 8]);
        next[2 * i + 1] = _mm_unpackhi_epi8(rows[i], rows[i + 8]);
      }
      std::copy_n(next, 16, rows);
    }
  }
#else
  void write_sorted(const Orders& out) const {
    for (int k = 0; k < out.count; ++k)
#pragma GCC unroll 4
      for (int q = 0; q < children_; ++q) {
        uint8_t low;
        std::memcpy(&low, reinterpret_cast<const char*>(&packed_[q].lane[k]) + LOW_BYTE, 1);
        out.data[q * out.place + k * out.lane] = uint8_t(MOST_PATCHES - 1 - low);
      }
  }
#endif

  void sort_one_by_one(const Orders& out) {
    std::vector<Row<Key>> key(children_);
    for (int patch = 0; patch < children_; ++patch)
      store(key[patch].lane, keys_of(energies() + patch * LANES, descending_));
    uint8_t source[MOST_PATCHES];
    for (int k = 0; k < out.count; ++k) {
      for (int patch = 0; patch < children_; ++patch) source[patch] = uint8_t(patch);
      std::stable_sort(source, source + children_, [&](int a, int b) { return key[a].lane[k] > key[b].lane[k]; });
      for (int q = 0; q < children_; ++q) out.data[q * out.place + k * out.lane] = source[q];
    }
  }

  Geometry g_;
  int n_, wide_ = 0, children_ = 0;  // children of a patch: a side, across and in all
  bool descending_;
  std::vector<Level> levels_;
  std::vector<Row<double>> packed_;  // key and source
  std::vector<Exchange> network_;
};

// Fills the first lane of a ranking from the energies of all maps of an image: [patch][channels] ...
template <class A> void rank_by_patch(A* energy, const Geometry& g, Ranking<A>& ranking) {
  for (int patch = 0; patch < g.patches(); ++patch, energy += g.channels) {
    sum_channels(energy, g.channels, 1);
    ranking.energies()[patch * LANES] = g.channels ? *energy : A(0);
  }
}

// ... or [channels][patch].
template <class A> void rank_by_map(A* energy, const Geometry& g, Ranking<A>& ranking) {
  sum_channels(energy, g.channels, g.patches());
  for (int patch = 0; patch < g.patches(); ++patch)
    ranking.energies()[patch * LANES] = g.channels ? energy[patch] : A(0);
}

void invert(const uint8_t* order, int64_t stride, uint8_t* inverse, int64_t inverse_stride, int patches) {
  for (int q = 0; q < patches; ++q) inverse[order[q * stride] * inverse_stride] = uint8_t(q);
}

}  // namespace

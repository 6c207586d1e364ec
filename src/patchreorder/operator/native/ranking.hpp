// Orders from energies, for up to LANES maps at once.

#pragma once

#include <limits>
#include <utility>

#include "energy.hpp"
#include "networks.hpp"

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

// Ranks the unit patches of up to LANES maps: fill energies(), [patch][LANES], then call write().
template <class A> class Ranking {
 public:
  Ranking(const Geometry& g, int levels, bool descending) : g_(g), n_(2), descending_(descending), levels_(levels) {
    while (levels > 1 && power(n_, levels) < g.rows) ++n_;
    for (int level = 0; level < levels; ++level) add_level(level);
    if (children_ > MOST_PAIRWISE) {
      packed_.resize(children_);
      if (children_ <= MOST_NARROW) narrow_.resize(MOST_NARROW);
      network_ = sorting_network(children_);
    }
  }

  A* energies() { return levels_.back().energy[0].lane; }  // [patch][LANES]

  // The place of a patch after write(), for up to MOST_PAIRWISE patches.
  template <class W> Vector<W> places(int patch) const {
    return convert<W>(load<Key>(levels_.back().place[patch].lane));
  }

  void write(const Orders& out) {
    if (children_ > MOST_PAIRWISE) {
      if constexpr (sizeof(A) == 4)
        return sort(out);
      else
        return sort_one_by_one(out);
    }
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
    if (REGISTER == 64 && children_ == 4)
      place_children<4>(level, above);
    else if (REGISTER == 64 && children_ == 9)
      place_children<9>(level, above);
    else if (REGISTER == 64 && children_ == 16)
      place_children<16>(level, above);
    else
      place_children<0>(level, above);
  }

  // CHILDREN: their number if the compiler should know it, to keep keys and ranks in registers, or 0. Narrower
  // registers than AVX-512's hold too few of them.
  template <int CHILDREN> void place_children(Level& level, const Level* above) {
    const int children = CHILDREN ? CHILDREN : children_;
    const int* child = level.child.data();
    for (size_t parent = 0; parent * children < level.child.size(); ++parent, child += children) {
      Vector<Key> key[CHILDREN ? CHILDREN : MOST_PAIRWISE], rank[CHILDREN ? CHILDREN : MOST_PAIRWISE];
#pragma GCC unroll 16
      for (int c = 0; c < children; ++c) {
        key[c] = keys_of(level.energy[child[c]].lane, descending_);
        rank[c] = Vector<Key>::all(c);  // the ranks if all were equal
      }
#pragma GCC unroll 16
      for (int a = 0; a < children; ++a) {
        Vector<Key> mine = rank[a];
#pragma GCC unroll 16
        for (int b = a + 1; b < children; ++b) {
          const Vector<Key> swap = key[b] > key[a];  // -1 where true
          mine = mine - swap;
          rank[b] = rank[b] + swap;
        }
        rank[a] = mine;
      }
      const Vector<Key> start = above ? load<Key>(above->place[parent].lane) : Vector<Key>{};
      for (int c = 0; c < children; ++c) store(level.place[child[c]].lane, start + step_for(rank[c], level.size));
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

  // More than MOST_PAIRWISE patches, one level. A key and its patch share one number, so that ties keep their order.
  // The numbers are sorted as floats or doubles, because every processor has their minimum and maximum; one is added to
  // the exponent so that all of them are normal.
  void sort(const Orders& out) {
    if (!narrow_.empty() && (descending_ ? sort_narrow<true>() : sort_narrow<false>())) {
#ifdef __SSE2__
      if (out.place == 1) return write_narrow(out);
#endif
      return write_sorted(narrow_.data(), MOST_NARROW - 1, out);
    }
    Row<double>* packed = packed_.data();
    for (int patch = 0; patch < children_; ++patch) {
      const auto key = convert<int64_t>(keys_of(energies() + patch * LANES, descending_)),
                 one = Vector<int64_t>::all(0x100000);
      const auto bits = (key + one << Vector<int64_t>::all(32)) + Vector<int64_t>::all(MOST_PATCHES - 1 - patch);
      std::memcpy(packed[patch].lane, &bits, sizeof bits);
    }
    for (const Exchange& pair : network_) exchange<Doubles>(packed[pair.first], packed[pair.second]);
    write_sorted(packed, MOST_PATCHES - 1, out);
  }

  // Sorts half as many bytes: the highest 24 bits of a key and its patch in 32 bits. Returns false if two different
  // keys may be equal in these bits. Zeros, the only common ties, are known to be equal: they are told apart by their
  // patches in higher bits, among numbers that no other key may have.
  template <bool DESCENDING> bool sort_narrow() {
    constexpr uint32_t infinity = 0x7f800000, zero = DESCENDING ? 0 : infinity, high = ~uint32_t(MOST_NARROW - 1);
    const int patches = children_;
    Words near = Words{} - 1, apart = near;  // the smallest distance of a key from zero, and of two keys
    Row<float>* packed = narrow_.data();
    for (size_t part = 0; part < sizeof(Row<float>) / sizeof(Words); ++part) {
      const A* energy = energies() + part * (sizeof(Words) / sizeof(A));
      Words mark = Words{} + (MOST_NARROW - 1), mark_of_zero = mark * MOST_NARROW;
      for (int patch = 0; patch < patches; ++patch, energy += LANES, mark -= 1, mark_of_zero -= MOST_NARROW) {
        Words key;
        std::memcpy(&key, energy, sizeof key);
        key = smaller(key, Words{} + (infinity + 1));  // NaN
        if (!DESCENDING) key = smaller(infinity - key, Words{} + (infinity + 1));
        near = smaller(near, (key ^ zero) - 1);
        const Words number = ((((key >> 1) + 0x800000) & high) | mark) + (Words(key == zero) & mark_of_zero);
        std::memcpy(reinterpret_cast<Words*>(packed[patch].lane) + part, &number, sizeof number);
      }
    }
    sort_rows(packed, patches);
    for (size_t part = 0; part < sizeof(Row<float>) / sizeof(Words); ++part) {
      const auto row = [&](int q) {
        Words number;
        std::memcpy(&number, reinterpret_cast<const Words*>(packed[q].lane) + part, sizeof number);
        return number;
      };
      Words last = row(0);
      for (int q = 1; q < patches; ++q) {
        const Words number = row(q);
        apart = smaller(apart, number ^ last);
        last = number;
      }
    }
    const Words doubtful = Words(near < 2 * MOST_NARROW * MOST_NARROW) | Words(apart < MOST_NARROW);
    uint32_t any = 0;
    for (size_t lane = 0; lane < sizeof(Words) / sizeof(uint32_t); ++lane) any |= doubtful[lane];
    return !any;
  }

#ifdef __SSE2__
  // The orders of maps one after the other, after sort_narrow(). Four bytes of an order form a word of its lane.
  void write_narrow(const Orders& out) const {
    constexpr int maps = sizeof(Words) / 16;
    const int patches = children_;
    const Row<float>* packed = narrow_.data();
    alignas(64) char order[LANES][MOST_NARROW];
    for (size_t part = 0; part < sizeof(Row<float>) / sizeof(Words); ++part)
      for (int first = 0; first < patches; first += 16) {
        const auto row = [&](int q) {
          Words number;
          std::memcpy(&number, reinterpret_cast<const Words*>(packed[first + q].lane) + part, sizeof number);
          return number;
        };
        Words word[4];
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
          const Words low = (row(4 * k) & 0xffu) | (row(4 * k + 1) << 8 & 0xff00u);
          const Words above = (row(4 * k + 2) & 0xffu) | row(4 * k + 3) << 8;
          word[k] = ~(low | above << 16) & 0x01010101u * (MOST_NARROW - 1);
        }
        transpose_words(word);
        for (int k = 0; k < 4; ++k)
          for (int i = 0; i < maps; ++i)
            std::memcpy(order[(part * maps + i) * 4 + k] + first, reinterpret_cast<const char*>(&word[k]) + 16 * i, 16);
      }
    for (int map = 0; map < out.count; ++map) {
      uint8_t* to = out.data + map * out.lane;
      if (map + 1 < out.count && out.lane >= patches)  // what is written too much is overwritten by the next map
        for (int first = 0; first < patches; first += 16) std::memcpy(to + first, order[map] + first, 16);
      else
        std::memcpy(to, order[map], patches);
    }
  }
#endif

  // The patch is `most` minus the lowest bits of each packed number.
#ifdef __SSE2__
  template <class T> void write_sorted(const Row<T>* packed, int most, const Orders& out) const {
    const bool planar = out.place == 1;
    for (int first = 0; first < children_; first += 16) {
      const int rows = std::min(16, children_ - first);
      __m128i bytes[16] = {};
      for (int q = 0; q < rows; ++q)
        bytes[q] = _mm_andnot_si128(low_bytes(packed[first + q].lane), _mm_set1_epi8(char(most)));
      if (planar) transpose(bytes);  // the bytes of a map become adjacent
      uint8_t* to = out.data + first * out.place;
      const int wanted = planar ? rows : out.count;
      for (int row = 0; row < (planar ? out.count : rows); ++row, to += planar ? out.lane : out.place)
        if (wanted == 16)
          _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes[row]);
        else
          std::memcpy(to, &bytes[row], wanted);
    }
  }

  // The lowest byte of each of 16 numbers.
  static __m128i low_bytes(const float* lanes) {
#ifdef __AVX512F__
    return _mm512_cvtepi32_epi8(_mm512_load_si512(lanes));
#else
    return low_bytes(_mm_load_ps(lanes), _mm_load_ps(lanes + 4), _mm_load_ps(lanes + 8), _mm_load_ps(lanes + 12));
#endif
  }
  static __m128i low_bytes(const double* lanes) {
#ifdef __AVX512F__
    return _mm_unpacklo_epi64(_mm512_cvtepi64_epi8(_mm512_load_si512(lanes)),
                              _mm512_cvtepi64_epi8(_mm512_load_si512(lanes + 8)));
#else
    const float* words = reinterpret_cast<const float*>(lanes);
    const auto four = [&](int k) { return _mm_shuffle_ps(_mm_load_ps(words + k), _mm_load_ps(words + k + 4), 0x88); };
    return low_bytes(four(0), four(8), four(16), four(24));
#endif
  }
  static __m128i low_bytes(__m128 a, __m128 b, __m128 c, __m128 d) {
    const auto low = [](__m128 words) { return _mm_and_si128(_mm_castps_si128(words), _mm_set1_epi32(255)); };
    return _mm_packus_epi16(_mm_packs_epi32(low(a), low(b)), _mm_packs_epi32(low(c), low(d)));
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
  template <class T> void write_sorted(const Row<T>* packed, int most, const Orders& out) const {
    for (int k = 0; k < out.count; ++k)
      for (int q = 0; q < children_; ++q)
        out.data[q * out.place + k * out.lane] = uint8_t(most - (bits_of(packed[q].lane[k]) & most));
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
  std::vector<Row<float>> narrow_;   // the same in 32 bits, for up to MOST_NARROW patches
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

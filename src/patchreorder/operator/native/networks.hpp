// Sorting networks: rows are sorted in every lane by itself, the largest first.

#pragma once

#include <utility>

#include "vectors.hpp"

namespace {

// The numbers of one register. Compilers do not use the maximum and minimum instructions for a > b ? a : b.
template <class T> struct Register {
  T value;
};
template <class T> inline Register<T> larger(Register<T> a, Register<T> b) { return a.value > b.value ? a : b; }
template <class T> inline Register<T> smaller(Register<T> a, Register<T> b) { return a.value < b.value ? a : b; }

#if defined(__AVX512F__)
using Doubles = __m512d;
using Floats = __m512;
inline Doubles larger(Doubles a, Doubles b) { return _mm512_max_pd(a, b); }
inline Doubles smaller(Doubles a, Doubles b) { return _mm512_min_pd(a, b); }
inline Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats smaller(Floats a, Floats b) { return _mm512_min_ps(a, b); }
#elif defined(__AVX__)
using Doubles = __m256d;
using Floats = __m256;
inline Doubles larger(Doubles a, Doubles b) { return _mm256_max_pd(a, b); }
inline Doubles smaller(Doubles a, Doubles b) { return _mm256_min_pd(a, b); }
inline Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats smaller(Floats a, Floats b) { return _mm256_min_ps(a, b); }
#elif defined(__SSE2__)
using Doubles = __m128d;
using Floats = __m128;
inline Doubles larger(Doubles a, Doubles b) { return _mm_max_pd(a, b); }
inline Doubles smaller(Doubles a, Doubles b) { return _mm_min_pd(a, b); }
inline Floats larger(Floats a, Floats b) { return _mm_max_ps(a, b); }
inline Floats smaller(Floats a, Floats b) { return _mm_min_ps(a, b); }
#else
using Doubles = Register<double>;
using Floats = Register<float>;
#endif

// As many 32-bit words as fit a register.
typedef uint32_t Words __attribute__((vector_size(REGISTER)));

inline Words smaller(Words a, Words b) {
#if defined(__AVX512F__)
  return Words(_mm512_min_epu32(__m512i(a), __m512i(b)));
#elif defined(__AVX2__)
  return Words(_mm256_min_epu32(__m256i(a), __m256i(b)));
#else
  return a < b ? a : b;
#endif
}

#ifdef __SSE2__
// In every 16 bytes, word i of row k changes places with word k of row i.
inline void transpose_words(Words* row) {
#if defined(__AVX512F__)
  using Integers = __m512i;
  const auto low = _mm512_unpacklo_epi32, high = _mm512_unpackhi_epi32;
  const auto low_pairs = _mm512_unpacklo_epi64, high_pairs = _mm512_unpackhi_epi64;
#elif defined(__AVX2__)
  using Integers = __m256i;
  const auto low = _mm256_unpacklo_epi32, high = _mm256_unpackhi_epi32;
  const auto low_pairs = _mm256_unpacklo_epi64, high_pairs = _mm256_unpackhi_epi64;
#else
  using Integers = __m128i;
  const auto low = _mm_unpacklo_epi32, high = _mm_unpackhi_epi32;
  const auto low_pairs = _mm_unpacklo_epi64, high_pairs = _mm_unpackhi_epi64;
#endif
  const Integers a = low(Integers(row[0]), Integers(row[1])), b = high(Integers(row[0]), Integers(row[1]));
  const Integers c = low(Integers(row[2]), Integers(row[3])), d = high(Integers(row[2]), Integers(row[3]));
  row[0] = Words(low_pairs(a, c)), row[1] = Words(high_pairs(a, c));
  row[2] = Words(low_pairs(b, d)), row[3] = Words(high_pairs(b, d));
}
#endif

// Two rows to compare.
struct Exchange {
  uint16_t first, second;
};

// Puts the larger numbers first, lane by lane.
template <class Part, class T> inline void exchange(Row<T>& one, Row<T>& other) {
  Part *first = reinterpret_cast<Part*>(one.lane), *second = reinterpret_cast<Part*>(other.lane);
#pragma GCC unroll 8
  for (size_t k = 0; k < sizeof(Row<T>) / sizeof(Part); ++k) {
    const Part a = first[k], b = second[k];
    first[k] = larger(a, b);
    second[k] = smaller(a, b);
  }
}

// The sorting network for `count` rows: Batcher's merge exchange (Knuth 5.2.2, algorithm M).
inline std::vector<Exchange> sorting_network(int count) {
  std::vector<Exchange> exchanges;
  int top = 1;
  while (2 * top < count) top *= 2;
  for (int p = top; p > 0; p /= 2) {
    int distance = p, r = 0;
    for (int q = top;; q /= 2) {
      for (int i = 0; i + distance < count; ++i)
        if ((i & p) == r) exchanges.push_back({uint16_t(i), uint16_t(i + distance)});
      if (q == p) break;
      distance = q - p;
      r = p;
    }
  }
  return exchanges;
}

// Batcher's odd-even merge sort for N rows, known to the compiler, which keeps rows in registers from one comparison to
// the next. Both halves are sorted before they are merged, so that neighbours in time are neighbours in memory.
template <int N> struct Network {
  Exchange pair[N * N / 2] = {};
  int count = 0;

  constexpr Network() {
    int size = 1;
    while (size < N) size *= 2;
    sort(0, size);
  }

 private:
  constexpr void sort(int first, int size) {
    if (size < 2 || first >= N) return;
    sort(first, size / 2);
    sort(first + size / 2, size / 2);
    merge(first, first + size, 1);
  }

  // Merges the two sorted halves of the rows first, first + step, ... before end.
  constexpr void merge(int first, int end, int step) {
    if (2 * step < end - first) {
      merge(first, end, 2 * step);
      merge(first + step, end, 2 * step);
      for (int i = first + step; i + step < end; i += 2 * step) add(i, i + step);
    } else {
      add(first, first + step);
    }
  }

  constexpr void add(int one, int other) {
    if (other < N) pair[count++] = {uint16_t(one), uint16_t(other)};  // rows from N on would be last anyway
  }
};

template <int N> constexpr Network<N> NETWORK{};
constexpr int AT_ONCE = 128;  // comparisons in one expression: compilers limit its length

template <int N, int FIRST, class Part, size_t... I>
inline __attribute__((always_inline)) void compare(Part* row, std::index_sequence<I...>) {
  const auto exchange_at = [row](int one, int other) {
    const Part a = row[one], b = row[other];
    row[one] = larger(a, b);
    row[other] = smaller(a, b);
  };
  (exchange_at(NETWORK<N>.pair[FIRST + I].first, NETWORK<N>.pair[FIRST + I].second), ...);
}

template <int N, int FIRST = 0, class Part> inline __attribute__((always_inline)) void compare_all(Part* row) {
  constexpr int left = NETWORK<N>.count - FIRST;
  compare<N, FIRST>(row, std::make_index_sequence<(left < AT_ONCE ? left : AT_ONCE)>());
  if constexpr (left > AT_ONCE) compare_all<N, FIRST + AT_ONCE>(row);
}

template <int N> void sort_rows(Row<float>* rows) {
  for (size_t k = 0; k < sizeof(Row<float>) / sizeof(Floats); ++k) {
    Floats row[N];
    for (int i = 0; i < N; ++i) row[i] = reinterpret_cast<const Floats*>(rows[i].lane)[k];
    compare_all<N>(row);
    for (int i = 0; i < N; ++i) reinterpret_cast<Floats*>(rows[i].lane)[k] = row[i];
  }
}

// Sorts `count` rows, up to MOST_NARROW. Rows after them must be there, and smaller.
inline void sort_rows(Row<float>* rows, int count) {
  if (count <= 25) return sort_rows<25>(rows);
  if (count <= 36) return sort_rows<36>(rows);
  if (count <= 49) return sort_rows<49>(rows);
  sort_rows<MOST_NARROW>(rows);
}

}  // namespace

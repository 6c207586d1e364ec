// Vectors of one number per lane, in which maps are ranked.

#pragma once

#include <cstring>

#include "geometry.hpp"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int REGISTER = 64;  // bytes
#elif defined(__AVX2__)
constexpr int REGISTER = 32;
#else
constexpr int REGISTER = 16;
#endif

// LANES numbers in as many registers as they fill. The compilers' vector extension is slow on larger vectors.
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

  friend Vector operator+(const Vector& a, const Vector& b) {
    return each([](Part x, Part y) { return x + y; }, a, b);
  }
  friend Vector operator-(const Vector& a, const Vector& b) {
    return each([](Part x, Part y) { return x - y; }, a, b);
  }
  friend Vector operator*(const Vector& a, const Vector& b) {
    return each([](Part x, Part y) { return x * y; }, a, b);
  }
  friend Vector operator&(const Vector& a, const Vector& b) {
    return each([](Part x, Part y) { return x & y; }, a, b);
  }
  friend Vector operator|(const Vector& a, const Vector& b) {
    return each([](Part x, Part y) { return x | y; }, a, b);
  }
  friend Vector operator<<(const Vector& a, const Vector& b) {
    return each([](Part x, Part y) { return x << y; }, a, b);
  }
  friend Vector operator>>(const Vector& a, const Vector& b) {
    return each([](Part x, Part y) { return x >> y; }, a, b);
  }
  // -1 (all bits set) where true
  friend Vector operator==(const Vector& a, const Vector& b) {
    return each([](Part x, Part y) { return x == y; }, a, b);
  }
  friend Vector operator>(const Vector& a, const Vector& b) {
    return each([](Part x, Part y) { return x > y; }, a, b);
  }

  // `value` where a == b, `otherwise` elsewhere.
  template <class U>
  friend Vector if_equal(const Vector<U>& a, const Vector<U>& b, const Vector& value, const Vector& otherwise) {
    using Test = typename Vector<U>::Part;
    return each([](Test x, Test y, Part v, Part o) { return x == y ? v : o; }, a, b, value, otherwise);
  }
};

// Loads elements as numbers, or as the words that store them.
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

// Memory for one number per lane, aligned to cache lines.
template <class T> struct alignas(64) Row {
  T lane[LANES];
};

template <int BYTES> struct WordOf;
template <> struct WordOf<2> {
  using type = uint16_t;
};
template <> struct WordOf<4> {
  using type = uint32_t;
};
template <> struct WordOf<8> {
  using type = uint64_t;
};
template <class T> using Word = typename WordOf<sizeof(T)>::type;

}  // namespace

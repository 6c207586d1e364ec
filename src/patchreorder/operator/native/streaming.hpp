// Writing past the caches, for results that would not stay in them.

#pragma once

#include "vectors.hpp"

namespace {

constexpr int LINE = 64;                           // bytes of a cache line
constexpr int64_t MOST_STREAMED_MAP = 256 * 1024;  // larger maps do not fit the second-level cache, twice

// Whether a result of this many bytes is written past the caches. An ordinary store first reads the line that it
// writes; AMD's processors copy in 0.7 of the time without that (measured on Zen 4; not measured on Intel's, which keep
// ordinary stores). Smaller results may stay in the third-level cache, 32 MB for the cores that share it, for whoever
// reads them.
inline bool is_streamed(int64_t bytes) {
#if defined(STREAM_FROM)  // tests
  return bytes >= STREAM_FROM;
#elif defined(__SSE2__) && defined(__GNUC__)
  static const bool amd = (__builtin_cpu_init(), __builtin_cpu_is("amd"));
  return amd && bytes >= 32 * 1024 * 1024;
#else
  return (void)bytes, false;
#endif
}

// Writes the whole lines past the caches, and what is left of the first and the last one as usual. Meanwhile fetches as
// many bytes from `next`: the memory would have nothing else to do until these stores are through.
inline void stream(char* to, const char* from, int64_t bytes, const char* next) {
  const int64_t head = std::min<int64_t>(-reinterpret_cast<intptr_t>(to) & (LINE - 1), bytes);
  std::memcpy(to, from, head);
  to += head, from += head, bytes -= head;
#ifdef __SSE2__
  for (; bytes >= LINE; to += LINE, from += LINE, next += LINE, bytes -= LINE) {
    __builtin_prefetch(next, 0, 2);
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
#elif defined(__AVX__)
    for (int k = 0; k < LINE; k += 32)
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + k), _mm256_loadu_si256((const __m256i*)(from + k)));
#else
    for (int k = 0; k < LINE; k += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + k), _mm_loadu_si128((const __m128i*)(from + k)));
#endif
  }
#endif
  (void)next;
  std::memcpy(to, from, bytes);
}

// Other threads see what was streamed only after this.
inline void end_streaming() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

}  // namespace

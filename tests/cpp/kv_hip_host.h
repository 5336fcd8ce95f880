// Kernels run on the host as their launchers run them on a GPU: the same choice of element type, width and pairing,
// blocks and threads as loops.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../hip/archive_key_part.h"
#include "../../hip/archive_steps.h"
#include "../../hip/archive_value_part.h"
#include "../../hip/restore_units.h"
#include "../../hip/rotation_units.h"
#include "../../hip/shift_units.h"

namespace everlong::hip::host {

inline constexpr int64_t kBeyond = 9;  // indexes behind the last one, which a launch's last block has too

// body(element, width, interleaved) as types, as WithElement and the launchers pick them.
template <class Body>
void Dispatch(DType dtype, bool vectors, bool interleaved, const Body& body) {
  WithElement(dtype, [&](auto element) {
    const auto with_pairing = [&](auto width) {
      if (interleaved) {
        body(element, width, std::true_type{});
      } else {
        body(element, width, std::false_type{});
      }
    };
    if (vectors) {
      with_pairing(std::integral_constant<int32_t, kVectorWidth<decltype(element)>>{});
    } else {
      with_pairing(std::integral_constant<int32_t, 1>{});
    }
  });
}

inline int32_t VectorWidth(DType dtype) {
  return WithElement(dtype, [](auto element) { return kVectorWidth<decltype(element)>; });
}

// Units run in no order; here, to make a dependence show, the last first when `backwards`.
template <Turn kTurn>
bool TurnRows(const HeadRows& rows, const PairPhase& phase, bool backwards = false) {
  const bool vectors = AllowsVectors(rows, phase.half, VectorWidth(rows.dtype));
  Dispatch(rows.dtype, vectors, phase.interleaved, [&](auto element, auto width, auto interleaved) {
    const int64_t units = UnitCount(rows, phase.half, width());
    if (units == 0) return;
    const RowDivisors by = DivisorsOf(rows, phase.half, width());
    for (int64_t i = 0; i < units; ++i) {
      ProcessUnit<decltype(element), width(), kTurn, interleaved()>(backwards ? units - 1 - i : i, rows, phase, by);
    }
  });
  return vectors;
}

// All layers of every head, cut into spans of two as a LayerGrid might.
template <class Body>
void ForSpans(const kv::FrameKv& frame, const Body& body) {
  for (int32_t head = 0; head < frame.kv_heads; ++head) {
    for (int32_t first = 0; first < frame.layers; first += 2) {
      body(HeadLayers{head, first, std::min(first + 2, frame.layers)});
    }
  }
}

// One block of threads, step by step.
template <class Part>
void RunPart(std::vector<Part> threads, const HeadLayers& span) {
  for (Part& part : threads) part.Load(span.first);
  for (int32_t layer = span.first; layer < span.end; ++layer) {
    for (Part& part : threads) {
      part.Measure(layer);
      if (layer + 1 < span.end) part.Load(layer + 1);
    }
    for (Part& part : threads) part.Scale(layer);
    for (Part& part : threads) part.Encode(layer);
  }
}

template <class Element, int32_t kWidth, bool kInterleaved, class Code>
void ArchivePages(const ArchiveJob& job) {
  const PageParts parts = PartsOfPage<kWidth>(job);
  std::vector<uint32_t> shared(static_cast<size_t>(parts.shared_words));
  ForSpans(job.frame, [&](const HeadLayers& span) {
    for (int64_t page = 0; page < PagesOf(job); ++page) {
      const HeadPage at = HeadPageAt(job, page, span.head);
      for (int32_t part = 0; part < parts.parts(); ++part) {
        std::ranges::fill(shared, 0xABABABABU);
        std::vector<KeyPart<Element, kWidth, kInterleaved, Code>> keys;
        std::vector<ValuePart<Element, kWidth, Code>> values;
        for (int32_t thread = 0; thread < parts.threads; ++thread) {
          if (part < parts.key_parts) {
            keys.emplace_back(job, parts, at, part, shared.data(), thread);
          } else {
            values.emplace_back(job, parts, at, part - parts.key_parts, shared.data(), thread);
          }
        }
        if (part < parts.key_parts) {
          RunPart(std::move(keys), span);
        } else {
          RunPart(std::move(values), span);
        }
      }
    }
  });
}

template <class Element, int32_t kWidth, bool kInterleaved, class Code>
void ArchiveRows(const ArchiveJob& job) {
  const Divisor by_key(UnitsPerRow(job.frame.head_dim, job.phase.half, kWidth));
  const Divisor by_value(UnitsPerRow(job.frame.head_dim, 0, kWidth));
  const Divisor by_page(job.page_tokens);
  ForSpans(job.frame, [&](const HeadLayers& span) {
    for (int64_t i = 0; i < job.tokens * by_key.divisor() + kBeyond; ++i) {
      ArchiveUnits<Element, kWidth, kInterleaved, true, Code>(i, span, job, by_key, by_page);
    }
    for (int64_t i = 0; i < job.tokens * by_value.divisor() + kBeyond; ++i) {
      ArchiveUnits<Element, kWidth, false, false, Code>(i, span, job, by_value, by_page);
    }
  });
}

inline void Archive(const ArchiveJob& job) {
  *job.rejected = RejectedNumber{};
  const bool vectors = AllowsVectors(job.frame, job.phase.half, VectorWidth(job.frame.dtype));
  Dispatch(job.frame.dtype, vectors, job.interleaved, [&](auto element, auto width, auto interleaved) {
    using Element = decltype(element);
    WithCode(job.codec, [&](auto code) {
      using Code = decltype(code);
      if constexpr (std::is_same_v<Code, StepsElement>) {
        ForSpans(job.frame, [&](const HeadLayers& span) {
          for (int64_t i = 0; i < StepsUnits(job) + kBeyond; ++i) ArchiveSteps<Element, interleaved()>(i, span, job);
        });
      } else if constexpr (sizeof(BitsOf<Code>) == 1) {
        ArchivePages<Element, width(), interleaved(), Code>(job);
      } else {
        ArchiveRows<Element, width(), interleaved(), Code>(job);
      }
    });
    ReadRejected<Element, interleaved()>(job);
  });
}

inline void Restore(const RestoreJob& job) {
  const Divisor by_tokens(job.most_tokens);
  const int64_t rows = job.count * job.most_tokens;
  const int32_t half = job.phase.half;
  for (int64_t i = 0; half > 0 && i < rows * half + kBeyond; ++i) PlacePhase(i, job, Divisor(half), by_tokens);
  const bool vectors = AllowsVectors(job.frame, half, VectorWidth(job.frame.dtype));
  Dispatch(job.frame.dtype, vectors, job.interleaved, [&](auto element, auto width, auto interleaved) {
    using Element = decltype(element);
    const Divisor by_key(UnitsPerRow(job.frame.head_dim, half, width()));
    const Divisor by_value(UnitsPerRow(job.frame.head_dim, 0, width()));
    WithCode(job.codec, [&](auto code) {
      using Code = decltype(code);
      ForSpans(job.frame, [&](const HeadLayers& span) {
        for (int64_t i = 0; i < rows * by_value.divisor() + kBeyond; ++i) {
          RestoreUnits<Element, width(), false, false, Code>(i, span, job, by_value, by_tokens);
        }
        for (int64_t i = 0; i < rows * by_key.divisor() + kBeyond; ++i) {
          RestoreUnits<Element, width(), interleaved(), true, Code>(i, span, job, by_key, by_tokens);
        }
      });
    });
  });
}

}  // namespace everlong::hip::host

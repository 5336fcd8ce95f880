// The part of an archive job that turns, scales and encodes keys (archive_kernels.h).
#pragma once

#include "archive_units.h"

namespace everlong::hip {

// One part of the keys of a head of a page. For every layer it does Load, Measure, all threads wait, Scale, all wait,
// Encode. The next layer may be loaded once a layer is measured.
template <class Element, int32_t kWidth, bool kInterleaved, class Code>
class KeyPart : public PagePart<Code> {
 public:
  EVERLONG_HD KeyPart(const ArchiveJob& job, const PageParts& parts, const HeadPage& at, int32_t part, uint32_t* shared,
                      int32_t thread)
      : PagePart<Code>(job, at),
        columns_(parts.key_columns),
        lanes_(parts.key_lanes),
        column_(thread % parts.key_columns),
        lane_(thread / parts.key_columns),
        least_(shared),
        largest_(least_ + kNumbers * parts.key_columns * parts.key_lanes),
        inverse_(largest_ + kNumbers * parts.key_columns * parts.key_lanes),
        centre_(inverse_ + kNumbers * parts.key_columns) {
    const int32_t units = UnitsPerRow(job.frame.head_dim, job.phase.half, kWidth);
    const int32_t first = part * columns_;
    unit_ = UnitOfRow(first + column_, job.phase.half, kInterleaved, kWidth);
    takes_part_ = lane_ < lanes_ && first + column_ < units;
    EVERLONG_UNROLL
    for (int32_t r = 0; r < kRows; ++r) {
      if (Has(r) && unit_.second != 0) phase_[r] = InversePhaseAt<kWidth>(job, at.first_token + Token(r), unit_);
    }
    // The channel that the thread scales is number `thread` of inverse_.
    if (thread >= kNumbers * columns_) return;
    const int32_t access = thread / (columns_ * kAccess);
    group_ = thread - access * columns_ * kAccess;
    access_ = access;
    const int32_t number = access * kAccess + group_ % kAccess;
    const int32_t of_part = first + group_ / kAccess;
    const RowUnit unit = UnitOfRow(of_part, job.phase.half, kInterleaved, kWidth);
    if (of_part >= units || (unit.second == 0 && number >= kWidth)) return;
    channel_ = unit.d + (number < kWidth ? number : unit.second + number - kWidth);
  }

  EVERLONG_HD void Load(int32_t layer) {
    const kv::FrameKv& frame = this->job_.frame;
    const auto* keys = static_cast<const BitsOf<Element>*>(frame.k) + layer * frame.layer_stride + this->at_.row;
    EVERLONG_UNROLL
    for (int32_t r = 0; r < kRows; ++r) {
      if (Has(r)) stored_[r] = LoadUnit<Element, kWidth>(keys + Token(r) * frame.head_dim + unit_.d, unit_.second);
    }
  }

  EVERLONG_HD void Measure(int32_t layer) {
    if (!takes_part_) return;
    float least[kNumbers];
    float largest[kNumbers];
    EVERLONG_UNROLL
    for (int32_t i = 0; i < kNumbers; ++i) {
      largest[i] = -FloatFromBits(kFloatInfinityBits);
      least[i] = FloatFromBits(kFloatInfinityBits);
    }
    uint32_t of_all = 0;
    EVERLONG_UNROLL
    for (int32_t r = 0; r < kRows; ++r) {
      if (!Has(r)) continue;
      values_[r] = WidenUnit(stored_[r]);
      if (unit_.second != 0) TurnUnit<kInterleaved>(values_[r], phase_[r]);
      EVERLONG_UNROLL
      for (int32_t i = 0; i < kNumbers; ++i) {
        const float value = values_[r].numbers[i];
        of_all = LargerMagnitude(of_all, value);
        least[i] = least[i] < value ? least[i] : value;
        largest[i] = largest[i] > value ? largest[i] : value;
      }
    }
    if (of_all >= kv::RejectedBits(this->job_.codec)) Reject(layer);
    StorePartial(least, least_);
    StorePartial(largest, largest_);
  }

  EVERLONG_HD void Scale(int32_t layer) const {
    if (channel_ < 0) return;
    const int32_t first = access_ * lanes_ * columns_ * kAccess + group_;
    float least = FloatFromBits(least_[first]);
    float largest = FloatFromBits(largest_[first]);
    for (int32_t lane = 1; lane < lanes_; ++lane) {
      const float low = FloatFromBits(least_[first + lane * columns_ * kAccess]);
      const float high = FloatFromBits(largest_[first + lane * columns_ * kAccess]);
      least = low < least ? low : least;
      largest = high > largest ? high : largest;
    }
    const kv::PartLayout& layout = this->at_.layout;
    float centre = 0;  // which changes no number
    if (kv::FormOf(this->job_.codec).centred) {
      centre = GroupCentre(least, largest);
      StoreBytes<BFloat16Element, 1>({{static_cast<uint16_t>(FloatBits(centre) >> 16)}},
                                     this->Part(layer) + layout.KCentres(this->at_.head) + int64_t{2} * channel_);
    }
    const uint32_t low = MagnitudeBits(least - centre);
    const uint32_t high = MagnitudeBits(largest - centre);
    uint8_t* out = this->Part(layer) + layout.KScales(this->at_.head) + int64_t{4} * channel_;
    inverse_[access_ * columns_ * kAccess + group_] = this->StoreScale(low > high ? low : high, out);
    centre_[access_ * columns_ * kAccess + group_] = FloatBits(centre);
  }

  EVERLONG_HD void Encode(int32_t layer) const {
    if (!takes_part_) return;
    float inverse[kNumbers];
    float centre[kNumbers];
    EVERLONG_UNROLL
    for (int32_t i = 0; i < kNumbers; i += kAccess) {
      const int64_t at = (i / kAccess * columns_ + column_) * kAccess;
      WidenVector(LoadVector<Float32Element, kAccess>(inverse_, at), inverse + i);
      WidenVector(LoadVector<Float32Element, kAccess>(centre_, at), centre + i);
    }
    uint8_t* codes = this->Part(layer) + this->at_.layout.KCodes(this->at_.head);
    EVERLONG_UNROLL
    for (int32_t r = 0; r < kRows; ++r) {
      if (!Has(r)) continue;
      float scaled[kNumbers];
      EVERLONG_UNROLL
      for (int32_t i = 0; i < kNumbers; ++i) scaled[i] = (values_[r].numbers[i] - centre[i]) * inverse[i];
      uint8_t* out = codes + Token(r) * this->at_.layout.head_dim + unit_.d;
      this->template StoreCodes<kWidth>(scaled, out);
      if (unit_.second != 0) this->template StoreCodes<kWidth>(scaled + kWidth, out + unit_.second);
    }
  }

 private:
  static constexpr int32_t kRows = kKeyRows;
  static constexpr int32_t kNumbers = 2 * kWidth;  // of a unit
  static constexpr int32_t kAccess = kWidth < 4 ? kWidth : 4;

  // Return the token of the page.
  [[nodiscard]] EVERLONG_HD int64_t Token(int32_t r) const { return lane_ + r * lanes_; }
  [[nodiscard]] EVERLONG_HD bool Has(int32_t r) const { return takes_part_ && Token(r) < this->at_.layout.tokens; }

  // Store what the thread's rows have of each number; `partial` is least_ or largest_.
  EVERLONG_HD void StorePartial(const float* numbers, uint32_t* partial) const {
    EVERLONG_UNROLL
    for (int32_t i = 0; i < kNumbers; i += kAccess) {
      const int64_t at = ((i / kAccess * lanes_ + lane_) * columns_ + column_) * kAccess;
      StoreVector(NarrowVector<Float32Element, kAccess>(numbers + i), partial, at);
    }
  }

  EVERLONG_HD void Reject(int32_t layer) {
    EVERLONG_UNROLL
    for (int32_t r = 0; r < kRows; ++r) {
      if (!Has(r)) continue;
      RejectFirst<kWidth>(values_[r].first(), this->job_, this->at_, layer, true, Token(r), unit_.d);
      if (unit_.second == 0) continue;
      RejectFirst<kWidth>(values_[r].second(), this->job_, this->at_, layer, true, Token(r), unit_.d + unit_.second);
    }
  }

  int32_t columns_;
  int32_t lanes_;
  int32_t column_;
  int32_t lane_;
  uint32_t* least_;    // [2 * kWidth / kAccess, lanes, columns, kAccess]: the least numbers of a lane's rows
  uint32_t* largest_;  // the same of the largest
  uint32_t* inverse_;  // [2 * kWidth / kAccess, columns, kAccess]: 1 / scale
  uint32_t* centre_;   // the same of the centres
  RowUnit unit_;
  bool takes_part_;
  int32_t channel_ = -1;  // of the head, which the thread scales; -1: none
  int32_t access_ = 0;
  int32_t group_ = 0;
  UnitPhase<kWidth> phase_[kRows];
  StoredUnit<Element, kWidth> stored_[kRows];
  UnitValues<kWidth> values_[kRows];
};

}  // namespace everlong::hip

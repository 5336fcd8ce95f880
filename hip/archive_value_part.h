// The part of an archive job that scales and encodes values (archive_kernels.h).
#pragma once

#include "archive_units.h"

namespace everlong::hip {

// One part of the values of a head of a page, in the same steps.
template <class Element, int32_t kWidth, class Code>
class ValuePart : public PagePart<Code> {
 public:
  EVERLONG_HD ValuePart(const ArchiveJob& job, const PageParts& parts, const HeadPage& at, int32_t part,
                        uint32_t* shared, int32_t thread)
      : PagePart<Code>(job, at),
        columns_(parts.value_columns),
        lanes_(parts.value_lanes),
        column_(thread % parts.value_columns),
        lane_(thread / parts.value_columns),
        thread_(thread),
        threads_(parts.threads),
        first_(part * parts.value_lanes * kRows),
        partial_(shared),
        inverse_(shared + parts.value_lanes * kRows * (parts.value_columns | 1)) {}

  EVERLONG_HD void Load(int32_t layer) {
    EVERLONG_UNROLL
    for (int32_t r = 0; r < kRows; ++r) {
      if (Has(r)) stored_[r] = Loaded<Vector>(Row(layer, r) + column_ * kWidth);
    }
  }

  EVERLONG_HD void Measure(int32_t layer) {
    EVERLONG_UNROLL
    for (int32_t r = 0; r < kRows; ++r) {
      if (!Has(r)) continue;
      measured_[r] = stored_[r];
      uint32_t largest = LargestOfVector(layer, r, column_ * kWidth, measured_[r]);
      ForOthers(layer, r, [&](int32_t d, const Vector& vector) {
        const uint32_t others = LargestOfVector(layer, r, d, vector);
        largest = others > largest ? others : largest;
      });
      partial_[RowOfPart(r) * (columns_ | 1) + column_] = largest;
    }
  }

  EVERLONG_HD void Scale(int32_t layer) const {
    for (int32_t row = thread_; row < lanes_ * kRows && first_ + row < this->at_.layout.tokens; row += threads_) {
      uint32_t largest = 0;
      for (int32_t column = 0; column < columns_; ++column) {
        const uint32_t of_column = partial_[row * (columns_ | 1) + column];
        largest = of_column > largest ? of_column : largest;
      }
      uint8_t* out = this->Part(layer) + this->at_.layout.VScales(this->at_.head) + int64_t{4} * (first_ + row);
      inverse_[row] = this->StoreScale(largest, out);
    }
  }

  EVERLONG_HD void Encode(int32_t layer) const {
    uint8_t* codes = this->Part(layer) + this->at_.layout.VCodes(this->at_.head);
    EVERLONG_UNROLL
    for (int32_t r = 0; r < kRows; ++r) {
      if (!Has(r)) continue;
      const float inverse = FloatFromBits(inverse_[RowOfPart(r)]);
      uint8_t* out = codes + int64_t{first_ + RowOfPart(r)} * Numbers();
      EncodeVector(measured_[r], inverse, out + column_ * kWidth);
      ForOthers(layer, r, [&](int32_t d, const Vector& vector) { EncodeVector(vector, inverse, out + d); });
    }
  }

 private:
  static constexpr int32_t kRows = kValueRows;
  using Vector = ElementVector<Element, kWidth>;

  [[nodiscard]] EVERLONG_HD int32_t Numbers() const { return this->at_.layout.head_dim; }
  // Visit the thread's further numbers of a row, where it has more than columns. They are read twice.
  template <class Body>
  EVERLONG_HD void ForOthers(int32_t layer, int32_t r, const Body& body) const {
    if constexpr (kWidth == 1) {
      for (int32_t d = column_ + columns_; d < Numbers(); d += columns_) {
        body(d, LoadVector<Element, kWidth>(Row(layer, r), d));
      }
    }
  }
  [[nodiscard]] EVERLONG_HD int32_t RowOfPart(int32_t r) const { return lane_ + r * lanes_; }
  [[nodiscard]] EVERLONG_HD bool Has(int32_t r) const {
    return lane_ < lanes_ && first_ + RowOfPart(r) < this->at_.layout.tokens;
  }
  [[nodiscard]] EVERLONG_HD const BitsOf<Element>* Row(int32_t layer, int32_t r) const {
    const kv::FrameKv& frame = this->job_.frame;
    return static_cast<const BitsOf<Element>*>(frame.v) + layer * frame.layer_stride + this->at_.row +
           int64_t{first_ + RowOfPart(r)} * Numbers();
  }

  EVERLONG_HD uint32_t LargestOfVector(int32_t layer, int32_t r, int32_t d, const Vector& vector) const {
    float values[kWidth];
    WidenVector(vector, values);
    const uint32_t largest = LargestOf<kWidth>(values);
    if (largest >= kv::RejectedBits(this->job_.codec)) {
      RejectFirst<kWidth>(values, this->job_, this->at_, layer, false, first_ + RowOfPart(r), d);
    }
    return largest;
  }

  EVERLONG_HD void EncodeVector(const Vector& vector, float inverse, uint8_t* out) const {
    float values[kWidth];
    WidenVector(vector, values);
    EVERLONG_UNROLL
    for (int32_t i = 0; i < kWidth; ++i) values[i] *= inverse;
    this->template StoreCodes<kWidth>(values, out);
  }

  int32_t columns_;
  int32_t lanes_;
  int32_t column_;
  int32_t lane_;
  int32_t thread_;
  int32_t threads_;
  int32_t first_;      // first token of the page in the part
  uint32_t* partial_;  // [lanes * kRows, columns | 1]: largest magnitudes of a column's vectors
  uint32_t* inverse_;  // [lanes * kRows]: 1 / scale
  Vector stored_[kRows];
  Vector measured_[kRows];
};

}  // namespace everlong::hip

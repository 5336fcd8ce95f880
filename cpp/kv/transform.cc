#include "everlong/kv/transform.h"

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "everlong/base/check.h"
#include "everlong/base/element.h"
#include "everlong/base/parallel_for.h"
#include "rans.h"
#include "transform_kernel.h"

namespace everlong::kv {
namespace {

constexpr float kMostCode = 1 << 30;
constexpr float kUnit = 1.0F / (1 << 15);  // of a basis
constexpr int32_t kMostBasis = (1 << 15) - 1;
// A sum of products of such codes with a basis fits int32.
constexpr uint32_t kMostSum = 65535;
constexpr uint32_t kMostPairedCode = (1 << 15) - 1;
static_assert(int64_t{kMostSum} * kMostBasis <= INT32_MAX);

// A matrix [rows, columns] in panels of kPanelColumns columns, `Rows` rows of a column side by side; 0 elsewhere.
template <class Number, int64_t Rows>
class Panels {
 public:
  template <class At>
  Panels(int64_t rows, int64_t columns, const At& at)
      : rows_((rows + Rows - 1) / Rows), panels_((columns + kPanelColumns - 1) / kPanelColumns) {
    values_.resize(static_cast<size_t>(panels_ * rows_ * kPanelColumns * Rows));
    for (int64_t column = 0; column < columns; ++column) {
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t place = (column / kPanelColumns * rows_ + row / Rows) * kPanelColumns + column % kPanelColumns;
        values_[static_cast<size_t>(place * Rows + row % Rows)] = at(row, column);
      }
    }
  }
  [[nodiscard]] int64_t width() const { return panels_ * kPanelColumns; }

  // Visit each panel's numbers, and its first column.
  template <class Visit>
  void ForEach(const Visit& visit) const {
    for (int64_t panel = 0; panel < panels_; ++panel) {
      visit(values_.data() + panel * rows_ * kPanelColumns * Rows, panel * kPanelColumns);
    }
  }

 private:
  int64_t rows_;
  int64_t panels_;
  std::vector<Number> values_;
};

// Return codes `c` and `c` + 1 of a row as one int32; 0 stands behind the last.
int32_t PairAt(std::span<const int32_t> row, size_t c) {
  const auto upper = c + 1 < row.size() ? static_cast<uint32_t>(row[c + 1]) : 0U;
  return static_cast<int32_t>(upper << 16U | (static_cast<uint32_t>(row[c]) & 0xFFFFU));
}

// Return whether codes are int16, and any sum of their products with a basis is an int32.
bool FitInt32(std::span<const int32_t> codes) {
  uint32_t largest = 0;  // loops without an exit, which the compiler turns into vectors
  uint32_t sum = 0;
  for (const int32_t code : codes) {
    const uint32_t size = code < 0 ? -static_cast<uint32_t>(code) : static_cast<uint32_t>(code);
    largest = std::max(largest, size);
    sum += std::min(size, kMostPairedCode);
  }
  return largest <= kMostPairedCode && sum <= kMostSum;
}

Status Bad(const std::string& what) { return InvalidArgumentError("transform: " + what); }

bool AllFinite(std::span<const float> values) {
  uint32_t largest = 0;  // a loop without an exit, which the compiler turns into vectors
  for (const float value : values) largest = std::max(largest, MagnitudeBits(value));
  return largest < kFloatInfinityBits;
}

Status CheckTable(const TransformTable& table) {
  const auto& frequencies = table.frequencies;
  const uint32_t sum = std::accumulate(frequencies.begin(), frequencies.end(), 0U);
  if (table.shift >= 0 && table.shift <= kTransformMostShift && sum == 1U << kTransformFrequencyBits &&
      frequencies[kTransformEscape] > 0) {
    return OkStatus();
  }
  return Bad("a table of frequencies has shift " + std::to_string(table.shift) + ", a sum of " + std::to_string(sum) +
             " and an escape of " + std::to_string(frequencies[kTransformEscape]));
}

Status CheckGroup(const TransformGroup& group, const PayloadLayout& layout, size_t tables) {
  if (group.first_layer < 0 || group.layers < 1 || group.layers > layout.layers - group.first_layer) {
    return Bad("a group has layers " + std::to_string(group.first_layer) + " + " + std::to_string(group.layers) +
               " of " + std::to_string(layout.layers));
  }
  const size_t numbers = static_cast<size_t>(group.layers) * layout.kv_heads * layout.head_dim;
  const size_t coefficients = group.tables.size();
  if (group.mean.size() != numbers || group.scales.size() != numbers || coefficients > numbers ||
      group.basis.size() != coefficients * numbers) {
    return Bad("a group of " + std::to_string(numbers) + " numbers has a mean of " + std::to_string(group.mean.size()) +
               ", scales of " + std::to_string(group.scales.size()) + " and a basis of " +
               std::to_string(group.basis.size()) + " for " + std::to_string(coefficients) + " coefficients");
  }
  const bool known = std::ranges::all_of(group.tables, [tables](uint8_t table) { return table < tables; });
  if (!known) return Bad("a coefficient has a table that is not there");
  const bool positive = std::ranges::all_of(group.scales, [](float scale) { return scale >= FLT_MIN / kUnit; });
  const bool fits = std::ranges::all_of(group.basis, [](int16_t value) { return value >= -kMostBasis; });
  if (!positive || !fits || !AllFinite(group.mean) || !AllFinite(group.scales)) {
    return Bad("a number of a group is not finite, a scale is not positive, or a basis has -32768");
  }
  return OkStatus();
}

}  // namespace

struct Transform::Tables {
  std::vector<RansTable> all;
};

struct Transform::Group {
  explicit Group(const TransformGroup& group)
      : keys(group.keys),
        first_layer(group.first_layer),
        layers(group.layers),
        numbers(std::ssize(group.mean)),
        tables(group.tables),
        decoding(coefficients(), numbers,
                 [&](int64_t row, int64_t column) { return group.basis[row * numbers + column]; }),
        encoding(numbers, coefficients(),
                 [&](int64_t row, int64_t column) {
                   return static_cast<float>(group.basis[column * numbers + row]) * kUnit / group.scales[row];
                 }),
        mean(group.mean),
        scales(static_cast<size_t>(decoding.width())),
        zeros(static_cast<size_t>(encoding.width())) {
    mean.resize(scales.size());
    std::ranges::transform(group.scales, scales.begin(), [](float value) { return value * kUnit; });
    const double most = std::abs(*std::ranges::max_element(mean, {}, [](float value) { return std::abs(value); }));
    finite_sum = (double{FLT_MAX} / 2 - most) / (kMostBasis * double{std::ranges::max(scales)});
  }
  [[nodiscard]] int64_t coefficients() const { return std::ssize(tables); }

  bool keys;
  int32_t first_layer;
  int32_t layers;
  int64_t numbers;
  std::vector<uint8_t> tables;
  Panels<int16_t, 2> decoding;  // [coefficients, numbers]
  Panels<float, 1> encoding;    // [numbers, coefficients], over the scales
  std::vector<float> mean;
  std::vector<float> scales;  // times kUnit
  std::vector<float> zeros;
  double finite_sum = 0;  // codes whose sizes sum to less have numbers that are finite

  // Return the rows of a group's numbers, [layers, heads, tokens, D], in a page of fp32 of `layout` that begins with
  // layer `first`: where each lies.
  template <class Visit>
  void ForEachRow(const PayloadLayout& layout, int32_t first, int32_t end, int32_t tokens, const Visit& visit) const {
    const PartLayout part{Codec::kFloat32, layout.kv_heads, layout.head_dim, tokens};
    for (int32_t layer = std::max(first, first_layer); layer < std::min(end, first_layer + layers); ++layer) {
      for (int32_t head = 0; head < layout.kv_heads; ++head) {
        const int64_t number = ((layer - first_layer) * int64_t{layout.kv_heads} + head) * layout.head_dim;
        visit(number, (layer - first) * part.Bytes() + (keys ? part.KCodes(head) : part.VCodes(head)));
      }
    }
  }

  // Return the codes [tokens, coefficients] of a page; none for a number that no code has.
  [[nodiscard]] std::vector<int32_t> CodesOf(std::span<const std::byte> page, int32_t tokens,
                                             const PayloadLayout& layout) const;
  // Return the numbers [tokens, decoding.width()] of codes.
  [[nodiscard]] std::vector<float> NumbersOf(std::span<const int32_t> codes, int32_t tokens) const;
  // Return whether all numbers of codes [tokens, coefficients] are finite. Tables that were fitted to some have no
  // others.
  [[nodiscard]] bool AreFinite(std::span<const int32_t> codes, int32_t tokens) const {
    double sum = 0;
    for (const int32_t code : codes) sum += std::abs(static_cast<double>(code));
    return sum < finite_sum || AllFinite(NumbersOf(codes, tokens));
  }
  // Fill the numbers [decoding.width()] of one token whose sums may not fit int32.
  void SumLarge(std::span<const int32_t> codes, std::span<float> out) const;
  // Return the codes of token `row` of codes [tokens, coefficients].
  [[nodiscard]] std::span<const int32_t> RowOf(std::span<const int32_t> codes, int64_t row) const {
    return codes.subspan(static_cast<size_t>(row) * tables.size(), tables.size());
  }
};

std::vector<int32_t> Transform::Group::CodesOf(std::span<const std::byte> page, int32_t tokens,
                                               const PayloadLayout& layout) const {
  const int64_t padded = (tokens + kRowsTogether - 1) / kRowsTogether * kRowsTogether;
  std::vector<float> differences(static_cast<size_t>(padded * numbers));  // [padded / 4, numbers, 4]
  ForEachRow(layout, 0, layout.layers, tokens, [&](int64_t number, int64_t place) {
    for (int64_t token = 0; token < tokens; ++token) {
      for (int64_t d = 0; d < layout.head_dim; ++d) {
        float value = 0;
        std::memcpy(&value, page.data() + place + 4 * (token * layout.head_dim + d), 4);
        const int64_t at = (token / kRowsTogether * numbers + number + d) * kRowsTogether + token % kRowsTogether;
        differences[static_cast<size_t>(at)] = value - mean[static_cast<size_t>(number + d)];
      }
    }
  });
  std::vector<int32_t> all(static_cast<size_t>(numbers));
  std::iota(all.begin(), all.end(), 0);
  const int64_t width = encoding.width();
  std::vector<float> sums(static_cast<size_t>(kRowsTogether * width));
  std::vector<int32_t> codes(static_cast<size_t>(tokens * coefficients()));
  for (int64_t first = 0; first < tokens; first += kRowsTogether) {
    encoding.ForEach([&](const float* panel, int64_t column) {
      BestTransformKernel().add_rows(panel, all.data(), differences.data() + first * numbers, numbers,
                                     zeros.data() + column, sums.data() + column, width);
    });
    for (int64_t token = first; token < std::min<int64_t>(first + kRowsTogether, tokens); ++token) {
      for (int64_t c = 0; c < coefficients(); ++c) {
        const float code = std::nearbyintf(sums[static_cast<size_t>((token - first) * width + c)]);
        if (!(std::fabs(code) < kMostCode)) return {};
        codes[static_cast<size_t>(token * coefficients() + c)] = static_cast<int32_t>(code);
      }
    }
  }
  return codes;
}

std::vector<float> Transform::Group::NumbersOf(std::span<const int32_t> codes, int32_t tokens) const {
  const int64_t padded = (tokens + kRowsTogether - 1) / kRowsTogether * kRowsTogether;
  const int64_t width = decoding.width();
  std::vector<float> out(static_cast<size_t>(padded * width));
  std::vector<int32_t> pairs;
  std::vector<int32_t> of_pairs;
  for (int64_t first = 0; first < tokens; first += kRowsTogether) {
    const auto rows = codes.subspan(static_cast<size_t>(first * coefficients()));
    const int64_t together = std::min<int64_t>(kRowsTogether, tokens - first);
    std::array<bool, kRowsTogether> fits{};
    for (int64_t r = 0; r < together; ++r) fits[static_cast<size_t>(r)] = FitInt32(RowOf(rows, r));
    pairs.clear();
    of_pairs.clear();
    for (int64_t c = 0; c < coefficients(); c += 2) {
      std::array<int32_t, kRowsTogether> both{};
      int32_t some = 0;
      for (size_t r = 0; r < kRowsTogether; ++r) {
        if (fits[r]) both[r] = PairAt(RowOf(rows, static_cast<int64_t>(r)), static_cast<size_t>(c));
        some |= both[r];
      }
      if (some == 0) continue;
      pairs.push_back(static_cast<int32_t>(c / 2));
      of_pairs.insert(of_pairs.end(), both.begin(), both.end());
    }
    decoding.ForEach([&](const int16_t* panel, int64_t column) {
      BestTransformKernel().add_pairs(panel, pairs.data(), of_pairs.data(), std::ssize(pairs), scales.data() + column,
                                      mean.data() + column, out.data() + first * width + column, width);
    });
    for (int64_t r = 0; r < together; ++r) {
      if (!fits[static_cast<size_t>(r)]) SumLarge(RowOf(rows, r), std::span(out).subspan((first + r) * width, width));
    }
  }
  return out;
}

void Transform::Group::SumLarge(std::span<const int32_t> codes, std::span<float> out) const {
  decoding.ForEach([&](const int16_t* panel, int64_t first) {
    for (int64_t column = 0; column < kPanelColumns; ++column) {
      int64_t sum = 0;
      for (size_t c = 0; c < codes.size(); ++c) {
        sum += int64_t{codes[c]} * panel[2 * (static_cast<int64_t>(c) / 2 * kPanelColumns + column) + c % 2];
      }
      const auto at = static_cast<size_t>(first + column);
      out[at] = std::fmaf(static_cast<float>(sum), scales[at], mean[at]);
    }
  });
}

Transform::Transform() = default;
Transform::~Transform() = default;

Result<std::shared_ptr<const Transform>> Transform::Make(const PayloadLayout& layout,
                                                         std::vector<TransformGroup> groups,
                                                         std::vector<TransformTable> tables) {
  EVERLONG_RETURN_IF_ERROR(Validate(layout));
  if (tables.empty() || tables.size() > 256) return Bad(std::to_string(tables.size()) + " tables; expected 1 to 256");
  for (const TransformTable& table : tables) EVERLONG_RETURN_IF_ERROR(CheckTable(table));
  std::vector<int32_t> covered(2 * static_cast<size_t>(layout.layers));
  for (const TransformGroup& group : groups) {
    EVERLONG_RETURN_IF_ERROR(CheckGroup(group, layout, tables.size()));
    for (int32_t layer = group.first_layer; layer < group.first_layer + group.layers; ++layer) {
      ++covered[static_cast<size_t>(2 * layer + (group.keys ? 1 : 0))];
    }
  }
  if (!std::ranges::all_of(covered, [](int32_t times) { return times == 1; })) {
    return Bad("the groups do not have the keys and the values of every layer once");
  }
  std::shared_ptr<Transform> made(new Transform());
  made->layout_ = layout;
  made->layout_.codec = Codec::kFloat32;
  made->tables_ = std::make_unique<Tables>();
  for (const TransformTable& table : tables) made->tables_->all.emplace_back(table);
  for (TransformGroup& group : groups) {
    made->groups_.push_back(std::make_unique<Group>(group));
    group = {};  // of twice the numbers, half are enough
  }
  return std::shared_ptr<const Transform>(std::move(made));
}

// A page is the bytes of each group's stream (uint32), then the streams, then zeros up to a multiple of the layers.
Result<std::vector<std::byte>> Transform::EncodePage(std::span<const std::byte> page, int32_t tokens) const {
  EVERLONG_CHECK(tokens > 0 && std::ssize(page) == layout_.PageBytes(tokens));
  std::vector<std::vector<std::byte>> streams(groups_.size());
  std::atomic<bool> refused = false;
  ParallelFor(0, std::ssize(groups_), 1, [&](int64_t first, int64_t last) {
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i) {
      const Group& group = *groups_[i];
      const std::vector<int32_t> codes = group.CodesOf(page, tokens, layout_);
      if (std::ssize(codes) != tokens * group.coefficients() || !group.AreFinite(codes, tokens)) {
        refused = true;
        continue;
      }
      if (!codes.empty()) RansEncode(codes, group.tables, tables_->all, streams[i]);
    }
  });
  if (refused) return Bad("a number of the page is too large for its step");
  std::vector<std::byte> coded(4 * groups_.size());
  for (size_t i = 0; i < groups_.size(); ++i) {
    const auto bytes = static_cast<uint32_t>(streams[i].size());
    std::memcpy(coded.data() + 4 * i, &bytes, 4);
    coded.insert(coded.end(), streams[i].begin(), streams[i].end());
  }
  const auto layers = static_cast<size_t>(layout_.layers);
  coded.resize((coded.size() + layers - 1) / layers * layers);
  return coded;
}

Status Transform::DecodeGroup(const CodedPage& page, size_t number, std::span<const std::byte> stream) const {
  const Group& group = *groups_[number];
  std::vector<int32_t> codes(static_cast<size_t>(page.tokens * group.coefficients()));
  const bool whole = codes.empty() ? stream.empty() : RansDecode(stream, group.tables, tables_->all, codes);
  if (!whole) return CorruptError("transform: the stream of group " + std::to_string(number) + " is damaged");
  const std::vector<float> numbers = group.NumbersOf(codes, page.tokens);
  if (!AllFinite(numbers))
    return CorruptError("transform: group " + std::to_string(number) + " has a number over all bounds");
  const size_t row = 4 * static_cast<size_t>(layout_.head_dim);
  group.ForEachRow(layout_, page.first_layer, page.first_layer + page.layers, page.tokens,
                   [&](int64_t first, int64_t place) {
                     for (int64_t token = 0; token < page.tokens; ++token) {
                       const float* const from = numbers.data() + token * group.decoding.width() + first;
                       std::memcpy(page.out.data() + place + token * static_cast<int64_t>(row), from, row);
                     }
                   });
  return OkStatus();
}

Status Transform::DecodePages(std::span<const CodedPage> pages) const {
  struct Task {
    const CodedPage* page;
    size_t group;
    std::span<const std::byte> stream;
  };
  std::vector<Task> tasks;
  for (const CodedPage& page : pages) {
    EVERLONG_CHECK(page.tokens > 0 && page.first_layer >= 0 && page.layers > 0 &&
                   page.first_layer + page.layers <= layout_.layers &&
                   std::ssize(page.out) == page.layers * layout_.PartBytes(page.tokens));
    if (page.coded.size() < 4 * groups_.size()) return CorruptError("transform: a page has no lengths of its streams");
    size_t at = 4 * groups_.size();
    for (size_t i = 0; i < groups_.size(); ++i) {
      uint32_t bytes = 0;
      std::memcpy(&bytes, page.coded.data() + 4 * i, 4);
      if (bytes > page.coded.size() - at) return CorruptError("transform: a stream ends behind its page");
      const Group& group = *groups_[i];
      const bool wanted =
          group.first_layer < page.first_layer + page.layers && group.first_layer + group.layers > page.first_layer;
      if (wanted) tasks.push_back({&page, i, page.coded.subspan(at, bytes)});
      at += bytes;
    }
    if (page.coded.size() - at >= static_cast<size_t>(layout_.layers))
      return CorruptError("transform: a page is too long");
  }
  std::vector<Status> done(tasks.size());
  ParallelFor(0, std::ssize(tasks), 1, [&](int64_t first, int64_t last) {
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i) {
      done[i] = DecodeGroup(*tasks[i].page, tasks[i].group, tasks[i].stream);
    }
  });
  for (const Status& status : done) EVERLONG_RETURN_IF_ERROR(status);
  return OkStatus();
}

}  // namespace everlong::kv

#include "rans.h"

#include <algorithm>
#include <cstring>

namespace everlong::kv {
namespace {

constexpr size_t kStates = 4;
constexpr uint32_t kLowest = 1U << 16U;
constexpr uint32_t kSlotMask = (1U << kTransformFrequencyBits) - 1;

struct Writer {
  std::array<uint32_t, kStates> states{kLowest, kLowest, kLowest, kLowest};
  std::vector<uint16_t> words;  // the last comes first in the stream

  // Make room in a state for a symbol of `frequency` / 2^bits.
  void Shrink(uint32_t& state, uint32_t frequency, int32_t bits) {
    if (state < uint64_t{frequency} << (32 - bits)) return;
    words.push_back(static_cast<uint16_t>(state));
    state >>= 16U;
  }
  void Put(uint32_t& state, const RansTable& table, int32_t symbol) {
    const uint32_t frequency = table.frequencies[static_cast<size_t>(symbol)];
    Shrink(state, frequency, kTransformFrequencyBits);
    state =
        (state / frequency << kTransformFrequencyBits) + state % frequency + table.starts[static_cast<size_t>(symbol)];
  }
  void PutBits(uint32_t& state, uint32_t value, int32_t bits) {
    Shrink(state, 1, bits);
    state = state << bits | value;
  }
};

int32_t SymbolOf(const RansTable& table, int32_t code) {
  const int32_t high = code >> table.shift;
  if (high < -kTransformReach || high > kTransformReach) return kTransformEscape;
  const int32_t symbol = high + kTransformReach;
  return table.frequencies[static_cast<size_t>(symbol)] > 0 ? symbol : kTransformEscape;
}

template <class Number>
void Add(std::vector<std::byte>& out, std::span<const Number> numbers) {
  const auto bytes = std::as_bytes(numbers);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace

RansTable::RansTable(const TransformTable& table) : shift(table.shift) {
  uint32_t start = 0;
  for (size_t symbol = 0; symbol < table.frequencies.size(); ++symbol) {
    const uint32_t frequency = table.frequencies[symbol];
    starts[symbol] = start;
    frequencies[symbol] = frequency;
    for (uint32_t within = 0; within < frequency; ++within) {
      slots[start + within] = static_cast<uint32_t>(symbol) << 25U | frequency << 12U | within;
    }
    start += frequency;
  }
}

void RansEncode(std::span<const int32_t> codes, std::span<const uint8_t> tables, std::span<const RansTable> all,
                std::vector<std::byte>& out) {
  Writer writer;
  std::vector<int32_t> escaped;
  for (size_t i = codes.size(); i-- > 0;) {
    const RansTable& table = all[tables[i % tables.size()]];
    uint32_t& state = writer.states[i % kStates];
    const int32_t symbol = SymbolOf(table, codes[i]);
    if (symbol == kTransformEscape) {
      escaped.push_back(codes[i]);
    } else if (table.shift > 0) {
      writer.PutBits(state, static_cast<uint32_t>(codes[i]) & ((1U << table.shift) - 1), table.shift);
    }
    writer.Put(state, table, symbol);
  }
  std::ranges::reverse(escaped);
  std::ranges::reverse(writer.words);
  const auto escapes = static_cast<uint32_t>(escaped.size());
  Add(out, std::span(&escapes, 1));
  Add(out, std::span<const uint32_t>(writer.states));
  Add(out, std::span<const int32_t>(escaped));
  Add(out, std::span<const uint16_t>(writer.words));
}

bool RansDecode(std::span<const std::byte> bytes, std::span<const uint8_t> tables, std::span<const RansTable> all,
                std::span<int32_t> codes) {
  constexpr size_t kHead = 4 + 4 * kStates;
  if (bytes.size() < kHead || bytes.size() % 2 != 0) return false;
  uint32_t escapes = 0;
  std::array<uint32_t, kStates> states{};
  std::memcpy(&escapes, bytes.data(), 4);
  std::memcpy(states.data(), bytes.data() + 4, 4 * kStates);
  if (escapes > (bytes.size() - kHead) / 4) return false;
  const std::byte* const escaped = bytes.data() + kHead;
  const std::byte* const words = escaped + size_t{4} * escapes;
  const size_t count = (bytes.size() - kHead - size_t{4} * escapes) / 2;
  size_t at = 0;  // it may pass `count`: then the bytes are refused at the end
  const auto refill = [&](uint32_t& state) {
    if (state >= kLowest) return;
    uint16_t word = 0;
    if (at < count) std::memcpy(&word, words + 2 * at, 2);
    ++at;
    state = state << 16U | word;
  };
  size_t escape = 0;
  size_t i = 0;
  for (size_t row = 0; row < codes.size(); row += tables.size()) {
    for (size_t column = 0; column < tables.size(); ++column, ++i) {
      const RansTable& table = all[tables[column]];
      uint32_t& state = states[i % kStates];
      const uint32_t slot = table.slots[state & kSlotMask];
      state = (slot >> 12U & 0x1FFFU) * (state >> kTransformFrequencyBits) + (slot & kSlotMask);
      refill(state);
      const auto symbol = static_cast<int32_t>(slot >> 25U);
      if (symbol == kTransformEscape) {
        if (escape == escapes) return false;
        std::memcpy(&codes[i], escaped + 4 * escape++, 4);
        continue;
      }
      auto code = symbol - kTransformReach;
      if (table.shift > 0) {
        code = code * (1 << table.shift) + static_cast<int32_t>(state & ((1U << table.shift) - 1));
        state >>= table.shift;
        refill(state);
      }
      codes[i] = code;
    }
  }
  const bool ended = std::ranges::all_of(states, [](uint32_t state) { return state == kLowest; });
  return at == count && escape == escapes && ended;
}

}  // namespace everlong::kv

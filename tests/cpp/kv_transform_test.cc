// The transform codec against its definition in fp64, and against bytes that it never wrote.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "../../cpp/kv/rans.h"
#include "../../cpp/kv/transform_kernel.h"
#include "everlong/kv/transform.h"

namespace everlong::kv {
namespace {

constexpr PayloadLayout kLayout{Codec::kFloat32, 3, 2, 6, 8};

// A table whose symbols fall off by `ratio`, the escape with the least.
TransformTable TableOf(int32_t shift, double ratio) {
  TransformTable table{shift, {}};
  int32_t left = 1 << kTransformFrequencyBits;
  for (int32_t symbol = 0; symbol < kTransformSymbols; ++symbol) {
    const double share = symbol == kTransformEscape ? 0.0 : std::pow(ratio, std::abs(symbol - kTransformReach));
    const auto frequency = static_cast<int32_t>(share * (1 - ratio) / (1 + ratio) * (1 << kTransformFrequencyBits));
    table.frequencies[static_cast<size_t>(symbol)] =
        static_cast<uint16_t>(std::max(frequency, symbol == kTransformEscape ? 1 : 0));
    left -= table.frequencies[static_cast<size_t>(symbol)];
  }
  table.frequencies[kTransformReach] = static_cast<uint16_t>(table.frequencies[kTransformReach] + left);
  return table;
}

const std::vector<TransformTable> kTables{TableOf(0, 0.1), TableOf(0, 0.6), TableOf(3, 0.8)};

struct Case {
  std::vector<TransformGroup> groups;
  std::shared_ptr<const Transform> transform;
};

// Groups of layers 0 to 1 and 2, of random orthonormal bases, some coefficients left out.
Case MakeCase(std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  Case made;
  for (const bool keys : {true, false}) {
    for (const auto& [first, layers] : {std::pair{0, 2}, std::pair{2, 1}}) {
      const int32_t n = layers * kLayout.kv_heads * kLayout.head_dim;
      TransformGroup group{keys, first, layers, {}, {}, {}, {}};
      for (int32_t i = 0; i < n; ++i) group.mean.push_back(3 * normal(random));
      for (int32_t i = 0; i < n; ++i)
        group.scales.push_back((keys ? 0.05F : 0.2F) * (1.0F + 0.1F * static_cast<float>(i % 5)));
      std::vector<std::vector<double>> rows;
      for (int32_t row = 0; row < n - 3; ++row) {
        std::vector<double> vector(static_cast<size_t>(n));
        for (double& x : vector) x = normal(random);
        for (int repeat = 0; repeat < 2; ++repeat) {
          for (const auto& other : rows) {
            double dot = 0;
            for (size_t i = 0; i < other.size(); ++i) dot += other[i] * vector[i];
            for (size_t i = 0; i < other.size(); ++i) vector[i] -= dot * other[i];
          }
        }
        double squares = 0;
        for (const double x : vector) squares += x * x;
        for (double& x : vector) x /= std::sqrt(squares);
        rows.push_back(vector);
        for (const double x : vector) group.basis.push_back(static_cast<int16_t>(std::nearbyint(32767 * x)));
        group.tables.push_back(static_cast<uint8_t>(row % 3));
      }
      made.groups.push_back(std::move(group));
    }
  }
  auto transform = Transform::Make(kLayout, made.groups, kTables);
  EXPECT_TRUE(transform.ok()) << transform.status().ToString();
  made.transform = *transform;
  return made;
}

std::vector<std::byte> BytesOf(std::span<const float> values) {
  std::vector<std::byte> bytes(values.size_bytes());
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
std::vector<float> FloatsOf(std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<float> RandomPage(std::mt19937_64& random, int32_t tokens) {
  std::normal_distribution<float> normal(0.5F, 4.0F);
  std::vector<float> page(static_cast<size_t>(kLayout.PageBytes(tokens) / 4));
  for (float& x : page) x = normal(random);
  return page;
}

// Where number d of a head of a layer lies in a page of fp32.
size_t PlaceOf(bool keys, int32_t layer, int32_t head, int32_t token, int32_t d, int32_t tokens) {
  const int32_t rows = ((2 * layer + (keys ? 0 : 1)) * kLayout.kv_heads + head) * tokens + token;
  return static_cast<size_t>(rows * kLayout.head_dim + d);
}

std::vector<std::byte> Decode(const Transform& transform, std::span<const std::byte> coded, int32_t tokens,
                              int32_t first = 0, int32_t layers = kLayout.layers) {
  std::vector<std::byte> out(static_cast<size_t>(layers * kLayout.PartBytes(tokens)));
  const CodedPage page{coded, tokens, first, layers, out};
  const Status decoded = transform.DecodePages({&page, 1});
  EXPECT_TRUE(decoded.ok()) << decoded.ToString();
  return out;
}

TEST(KvTransform, APageIsItsMeanAndMultiplesOfTheStepInItsBasis) {
  std::mt19937_64 random(3);
  const Case made = MakeCase(random);
  for (const int32_t tokens : {1, 3, 4, 8}) {
    const std::vector<float> page = RandomPage(random, tokens);
    const auto coded = made.transform->EncodePage(BytesOf(page), tokens);
    ASSERT_TRUE(coded.ok());
    EXPECT_EQ(coded->size() % kLayout.layers, 0U);
    const std::vector<float> got = FloatsOf(Decode(*made.transform, *coded, tokens));
    for (const TransformGroup& group : made.groups) {
      const size_t n = group.mean.size();
      for (int32_t token = 0; token < tokens; ++token) {
        std::vector<double> in(n);
        std::vector<double> out(group.mean.begin(), group.mean.end());
        const auto place = [&](size_t i) {
          const auto row = static_cast<int32_t>(i) / kLayout.head_dim;
          return PlaceOf(group.keys, group.first_layer + row / kLayout.kv_heads, row % kLayout.kv_heads, token,
                         static_cast<int32_t>(i) % kLayout.head_dim, tokens);
        };
        for (size_t i = 0; i < n; ++i) in[i] = double{page[place(i)]} - group.mean[i];
        for (size_t c = 0; c < group.tables.size(); ++c) {
          double z = 0;
          for (size_t i = 0; i < n; ++i) z += in[i] / group.scales[i] * group.basis[c * n + i] / 32768;
          for (size_t i = 0; i < n; ++i) out[i] += std::nearbyint(z) * group.scales[i] * group.basis[c * n + i] / 32768;
        }
        // A sum that lies between two codes may become either in fp32: a step, and no more.
        for (size_t i = 0; i < n; ++i) EXPECT_NEAR(got[place(i)], out[i], 1.01 * group.scales[i]);
        double error = 0;
        for (size_t i = 0; i < n; ++i) error += std::abs(got[place(i)] - out[i]);
        EXPECT_LT(error / static_cast<double>(n), 0.05 * group.scales[0]);
      }
    }
  }
}

TEST(KvTransform, APageAndALayerAloneAreTheirPartsOfTheWhole) {
  std::mt19937_64 random(4);
  const Case made = MakeCase(random);
  std::vector<std::vector<std::byte>> coded;
  std::vector<std::vector<std::byte>> out;
  std::vector<CodedPage> pages;
  const std::vector<int32_t> lengths{8, 8, 5, 1};
  for (const int32_t tokens : lengths) {
    coded.push_back(made.transform->EncodePage(BytesOf(RandomPage(random, tokens)), tokens).value());
    out.emplace_back(static_cast<size_t>(kLayout.PageBytes(tokens)));
  }
  for (size_t i = 0; i < lengths.size(); ++i) pages.push_back({coded[i], lengths[i], 0, kLayout.layers, out[i]});
  ASSERT_TRUE(made.transform->DecodePages(pages).ok());
  for (size_t i = 0; i < lengths.size(); ++i) {
    EXPECT_EQ(out[i], Decode(*made.transform, coded[i], lengths[i]));
    const auto part = static_cast<size_t>(kLayout.PartBytes(lengths[i]));
    for (int32_t first = 0; first < kLayout.layers; ++first) {
      for (int32_t layers = 1; layers <= kLayout.layers - first; ++layers) {
        const auto some = Decode(*made.transform, coded[i], lengths[i], first, layers);
        EXPECT_TRUE(std::ranges::equal(some, std::span(out[i]).subspan(first * part, layers * part)));
      }
    }
  }
}

TEST(KvTransform, BytesThatWereNeverWrittenAreRefusedOrFinite) {
  std::mt19937_64 random(5);
  const Case made = MakeCase(random);
  constexpr int32_t kTokens = 5;
  const std::vector<std::byte> whole =
      made.transform->EncodePage(BytesOf(RandomPage(random, kTokens)), kTokens).value();
  int refused = 0;
  int tried = 0;
  const auto decode = [&](std::vector<std::byte> bytes) {
    std::vector<std::byte> out(static_cast<size_t>(kLayout.PageBytes(kTokens)));
    const CodedPage page{bytes, kTokens, 0, kLayout.layers, out};
    const Status decoded = made.transform->DecodePages({&page, 1});
    ++tried;
    if (!decoded.ok()) {
      EXPECT_EQ(decoded.code(), StatusCode::kCorrupt);
      ++refused;
      return;
    }
    EXPECT_TRUE(std::ranges::all_of(FloatsOf(out), [](float x) { return std::isfinite(x); }));
  };
  for (size_t bytes = 0; bytes < whole.size(); ++bytes)
    decode({whole.begin(), whole.begin() + static_cast<int64_t>(bytes)});
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {1, 0x80, 0xFF}) {
      std::vector<std::byte> damaged = whole;
      damaged[at] ^= static_cast<std::byte>(flip);
      decode(damaged);
    }
  }
  EXPECT_GT(refused, tried / 3);  // an escaped code may have any value: the store has checksums
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> noise(random() % 400);
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    decode(noise);
  }
}

TEST(KvTransform, ANumberThatNoCodeHasIsRefused) {
  std::mt19937_64 random(6);
  const Case made = MakeCase(random);
  std::vector<float> page = RandomPage(random, 2);
  page[5] = 1e30F;
  EXPECT_EQ(made.transform->EncodePage(BytesOf(page), 2).status().code(), StatusCode::kInvalidArgument);
  // Far out, by escapes: the second has codes whose sums leave 32 bits.
  for (const float far : {1e3F, 1e5F, 1e7F}) {
    page[5] = far;
    const auto coded = made.transform->EncodePage(BytesOf(page), 2);
    ASSERT_TRUE(coded.ok());
    const std::vector<float> got = FloatsOf(Decode(*made.transform, *coded, 2));
    EXPECT_NEAR(got[5], far, 0.4 * far);  // three of 24 coefficients are left out
    EXPECT_TRUE(std::isfinite(got[4]));
  }
}

TEST(KvTransform, APageWhoseCodesGoBeyondAllNumbersIsRefused) {
  std::mt19937_64 random(8);
  Case made = MakeCase(random);
  for (TransformGroup& group : made.groups) std::ranges::fill(group.scales, 1e36F);
  const auto transform = Transform::Make(kLayout, made.groups, kTables);
  ASSERT_TRUE(transform.ok());
  std::uniform_real_distribution<float> size(-1.0F, 1.0F);
  int refused = 0;
  int coded = 0;
  for (int i = 0; i < 400; ++i) {
    std::vector<float> page(static_cast<size_t>(kLayout.PageBytes(1) / 4));
    const float most = i % 2 == 0 ? 3.4e38F : 0.7e38F;
    for (float& x : page) x = most * size(random);
    const auto encoded = (*transform)->EncodePage(BytesOf(page), 1);
    if (!encoded.ok()) {
      EXPECT_EQ(encoded.status().code(), StatusCode::kInvalidArgument);
      ++refused;
      continue;
    }
    ++coded;
    EXPECT_FALSE(Decode(**transform, *encoded, 1).empty());
  }
  EXPECT_GT(refused, 20);
  EXPECT_GT(coded, 20);
}

TEST(KvTransform, TablesThatAreNoneAreRefused) {
  std::mt19937_64 random(7);
  const Case made = MakeCase(random);
  const auto refuses = [&](auto change) {
    std::vector<TransformGroup> groups = made.groups;
    std::vector<TransformTable> tables = kTables;
    change(groups, tables);
    EXPECT_EQ(Transform::Make(kLayout, groups, tables).status().code(), StatusCode::kInvalidArgument);
  };
  using Groups = std::vector<TransformGroup>&;
  using Tables = std::vector<TransformTable>&;
  refuses([](Groups groups, Tables) { groups.pop_back(); });
  refuses([](Groups groups, Tables) { groups.push_back(groups.back()); });
  refuses([](Groups groups, Tables) { groups[0].layers = 99; });
  refuses([](Groups groups, Tables) { groups[0].first_layer = -1; });
  refuses([](Groups groups, Tables) { groups[0].scales[1] = 0; });
  refuses([](Groups groups, Tables) { groups[0].scales[1] = NAN; });
  refuses([](Groups groups, Tables) { groups[0].mean.pop_back(); });
  refuses([](Groups groups, Tables) { groups[0].basis.pop_back(); });
  refuses([](Groups groups, Tables) { groups[0].scales.pop_back(); });
  refuses([](Groups groups, Tables) { groups[0].mean[3] = INFINITY; });
  refuses([](Groups groups, Tables) { groups[0].basis[3] = -32768; });
  refuses([](Groups groups, Tables) { groups[0].tables[0] = 3; });
  refuses([](Groups, Tables tables) { tables.clear(); });
  refuses([](Groups, Tables tables) { tables[0].frequencies[0]++; });
  refuses([](Groups, Tables tables) { tables[0].shift = 12; });
  refuses([](Groups, Tables tables) {
    tables[0].frequencies[kTransformReach] += tables[0].frequencies[kTransformEscape];
    tables[0].frequencies[kTransformEscape] = 0;
  });
}

TEST(KvTransform, CodesTakeWhatTheirFrequenciesSay) {
  std::mt19937_64 random(8);
  const std::vector<RansTable> all(kTables.begin(), kTables.end());
  const std::vector<uint8_t> tables{0, 1, 2, 1};
  constexpr size_t kRows = 4000;
  std::vector<int32_t> codes;
  double bits = 0;
  for (size_t i = 0; i < kRows * tables.size(); ++i) {
    const TransformTable& table = kTables[tables[i % tables.size()]];
    const auto slot = static_cast<int32_t>(random() % (1 << kTransformFrequencyBits));
    int32_t symbol = 0;
    for (int32_t below = table.frequencies[0]; below <= slot; below += table.frequencies[static_cast<size_t>(symbol)])
      ++symbol;
    if (symbol == kTransformEscape) symbol = kTransformReach;
    const auto low = static_cast<int32_t>(random() % (1U << table.shift));
    codes.push_back((symbol - kTransformReach) * (1 << table.shift) + low);
    bits += kTransformFrequencyBits - std::log2(table.frequencies[static_cast<size_t>(symbol)]) + table.shift;
  }
  std::vector<std::byte> bytes;
  RansEncode(codes, tables, all, bytes);
  EXPECT_LT(8.0 * static_cast<double>(bytes.size()), 1.005 * bits + 8 * 28);
  std::vector<int32_t> got(codes.size());
  ASSERT_TRUE(RansDecode(bytes, tables, all, got));
  EXPECT_EQ(got, codes);
  // Any codes come back, however unlikely.
  for (int32_t& code : codes) code = static_cast<int32_t>(random() % 4 == 0 ? random() : random() % 40) - 20;
  bytes.clear();
  RansEncode(codes, tables, all, bytes);
  ASSERT_TRUE(RansDecode(bytes, tables, all, got));
  EXPECT_EQ(got, codes);
}

TEST(KvTransform, EveryInstructionSetSumsPairsExactly) {
  std::mt19937_64 random(10);
  constexpr int32_t kPairs = 29;
  const auto within = [&](int32_t most) { return static_cast<int32_t>(random() % (2 * most + 1)) - most; };
  std::vector<int16_t> panel(2 * kPairs * kPanelColumns);
  for (int16_t& x : panel) x = static_cast<int16_t>(within(32767));
  std::vector<float> scale(kPanelColumns);
  std::vector<float> mean(kPanelColumns);
  for (size_t i = 0; i < scale.size(); ++i) {
    scale[i] = 1e-3F * static_cast<float>(within(900));
    mean[i] = static_cast<float>(within(99));
  }
  std::vector<int32_t> pairs;
  for (int32_t pair = 0; pair < kPairs; pair += 1 + static_cast<int32_t>(random() % 2)) pairs.push_back(pair);
  std::vector<int32_t> codes;  // lower, upper of each
  std::vector<int32_t> both;
  for (size_t i = 0; i < kRowsTogether * pairs.size(); ++i) {
    for (int half = 0; half < 2; ++half) codes.push_back(within(1000));
    both.push_back(static_cast<int32_t>(static_cast<uint32_t>(codes[2 * i + 1]) << 16U | (codes[2 * i] & 0xFFFF)));
  }
  std::vector<float> expected(kRowsTogether * kPanelColumns);
  for (size_t r = 0; r < kRowsTogether; ++r) {
    for (size_t column = 0; column < kPanelColumns; ++column) {
      int64_t sum = 0;
      for (size_t i = 0; i < pairs.size(); ++i) {
        for (size_t half = 0; half < 2; ++half) {
          const size_t at = 2 * (static_cast<size_t>(pairs[i]) * kPanelColumns + column) + half;
          sum += int64_t{codes[2 * (kRowsTogether * i + r) + half]} * panel[at];
        }
      }
      expected[r * kPanelColumns + column] = std::fmaf(static_cast<float>(sum), scale[column], mean[column]);
    }
  }
  const auto& supported = SupportedTransformKernels();
  for (int32_t i = 0; i < supported.count; ++i) {
    std::vector<float> out(kRowsTogether * kPanelColumns);
    supported.kernels[i].add_pairs(panel.data(), pairs.data(), both.data(), std::ssize(pairs), scale.data(),
                                   mean.data(), out.data(), kPanelColumns);
    EXPECT_EQ(out, expected) << supported.kernels[i].name;
  }
}

TEST(KvTransform, EveryInstructionSetGivesTheSameBits) {
  std::mt19937_64 random(9);
  std::normal_distribution<float> normal;
  constexpr int32_t kRows = 37;
  std::vector<float> panel(kRows * kPanelColumns);
  for (float& x : panel) x = normal(random);
  std::vector<float> begin(kPanelColumns);
  for (float& x : begin) x = normal(random);
  std::vector<int32_t> rows;
  for (int32_t row = 0; row < kRows; row += 1 + static_cast<int32_t>(random() % 2)) rows.push_back(row);
  std::vector<float> factors;
  for (size_t i = 0; i < kRowsTogether * rows.size(); ++i) factors.push_back(random() % 3 == 0 ? 0 : normal(random));
  const auto run = [&](const TransformKernel& kernel) {
    std::vector<float> out(kRowsTogether * kPanelColumns);
    kernel.add_rows(panel.data(), rows.data(), factors.data(), std::ssize(rows), begin.data(), out.data(),
                    kPanelColumns);
    return out;
  };
  const auto& supported = SupportedTransformKernels();
  const std::vector<float> best = run(supported.kernels[0]);
  for (int32_t i = 1; i < supported.count; ++i) EXPECT_EQ(run(supported.kernels[i]), best) << supported.kernels[i].name;
  for (size_t r = 0; r < kRowsTogether; ++r) {
    for (size_t column = 0; column < kPanelColumns; ++column) {
      double sum = begin[column];
      for (size_t i = 0; i < rows.size(); ++i) {
        sum += double{factors[kRowsTogether * i + r]} * panel[static_cast<size_t>(rows[i]) * kPanelColumns + column];
      }
      EXPECT_NEAR(best[r * kPanelColumns + column], sum, 1e-4);
    }
  }
}

}  // namespace
}  // namespace everlong::kv

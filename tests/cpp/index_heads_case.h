// Archives with a question, and their masses from the definition.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "../../cpp/index/best_first.h"
#include "../../cpp/index/heads_index.h"
#include "everlong/base/status.h"
#include "index_page_mask.h"
#include "index_reference.h"

namespace everlong::index {

// An archive and a question beside the index that holds them.
struct Case {
  std::vector<RetrievalHead> heads;
  int32_t dim = 0;
  int32_t key_heads = 0;
  std::vector<int32_t> key_of_head;
  std::vector<std::vector<float>> pages;  // [key_heads, tokens, D] each
  std::vector<int32_t> tokens;
  std::vector<int32_t> sinks;
  std::vector<float> q;
  std::vector<float> weights;
  PageMask filter;

  [[nodiscard]] HeadsIndex Build(int32_t coarse_from = kCoarseFrom, KeyStorage keys = KeyStorage::kBf16) const {
    HeadsOptions options;
    options.coarse_from = coarse_from;
    options.keys = keys;
    return Build(options);
  }
  [[nodiscard]] HeadsIndex Build(const HeadsOptions& options) const {
    HeadsIndex index(heads, dim, options);
    for (size_t page = 0; page < pages.size(); ++page) {
      EXPECT_TRUE(index.Add(pages[page], tokens[page], sinks[page]).ok());
    }
    return index;
  }

  // This case with its keys as they are kept (index_key_tiles_test.cc checks those).
  [[nodiscard]] Case Kept(KeyStorage keys) const {
    Case kept = *this;
    KeyTiles tiles(key_heads, dim, keys);
    for (size_t page = 0; page < pages.size(); ++page) {
      EXPECT_TRUE(tiles.Add(pages[page], tokens[page]).ok());
      const auto size = static_cast<size_t>(tokens[page] * dim);
      for (int32_t head = 0; head < key_heads; ++head) {
        tiles.Decode(static_cast<int32_t>(page), head,
                     std::span(kept.pages[page]).subspan(static_cast<size_t>(head) * size, size));
      }
    }
    return kept;
  }

  // The definition, token by token in fp64.
  [[nodiscard]] std::vector<double> Reference() const {
    std::vector<double> mass(pages.size(), 0.0);
    for (size_t t = 0; t < weights.size(); ++t) {
      for (size_t h = 0; h < heads.size(); ++h) {
        const float* query = q.data() + (t * heads.size() + h) * static_cast<size_t>(dim);
        std::vector<std::vector<double>> scores(pages.size());
        double largest = -std::numeric_limits<double>::infinity();
        for (size_t p = 0; p < pages.size(); ++p) {
          if (!filter.Allows(static_cast<int32_t>(p))) continue;
          for (int32_t token = sinks[p]; token < tokens[p]; ++token) {
            const float* key = pages[p].data() + static_cast<size_t>((key_of_head[h] * tokens[p] + token) * dim);
            double dot = 0;
            // Queries are rounded once they are scaled.
            const double scale = std::numbers::log2e / std::sqrt(static_cast<double>(dim));
            for (int32_t i = 0; i < dim; ++i) dot += RoundToBf16(query[i] * scale) * RoundToBf16(key[i]);
            scores[p].push_back(dot / std::numbers::log2e);
            largest = std::max(largest, scores[p].back());
          }
        }
        double total = 0;
        for (auto& page : scores) {
          for (double& score : page) total += score = std::exp(score - largest);
        }
        if (total == 0) continue;
        for (size_t p = 0; p < pages.size(); ++p) {
          mass[p] += static_cast<double>(weights[t]) * std::accumulate(scores[p].begin(), scores[p].end(), 0.0) / total;
        }
      }
    }
    return mass;
  }
};

struct Shape {
  std::vector<RetrievalHead> heads;
  int32_t dim = 64;
  int32_t pages = 10;
  int32_t page_tokens = 64;
  int32_t question = 3;
  float sharpness = 1.0F;  // of the attention: scales q
};

inline Case MakeCase(const Shape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Case made;
  made.heads = shape.heads;
  made.dim = shape.dim;
  const HeadsIndex index(shape.heads, shape.dim);
  made.key_heads = static_cast<int32_t>(index.key_heads().size());
  for (const RetrievalHead& head : shape.heads) {
    for (int32_t key = 0; key < made.key_heads; ++key) {
      if (index.key_heads()[static_cast<size_t>(key)] == KeyHead{head.layer, head.kv_head}) {
        made.key_of_head.push_back(key);
      }
    }
  }
  made.filter = PageMask(shape.pages, true);
  for (int32_t page = 0; page < shape.pages; ++page) {
    // Every third page is shorter than the others.
    const int32_t tokens = page % 3 == 2 ? 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(shape.page_tokens))
                                         : shape.page_tokens;
    std::vector<float> keys(static_cast<size_t>(made.key_heads * tokens * shape.dim));
    std::ranges::generate(keys, [&] { return normal(random); });
    made.pages.push_back(std::move(keys));
    made.tokens.push_back(tokens);
    made.sinks.push_back(0);
  }
  made.q.resize(static_cast<size_t>(shape.question) * shape.heads.size() * static_cast<size_t>(shape.dim));
  std::ranges::generate(made.q, [&] { return shape.sharpness * normal(random); });
  made.weights.resize(static_cast<size_t>(shape.question));
  std::ranges::generate(made.weights, [&] { return 0.1F + std::abs(normal(random)); });
  return made;
}

// The k pages of largest mass, best first, ties by the older page.
inline Result<std::vector<Hit>> Search(const HeadsIndex& index, std::span<const float> q,
                                       std::span<const float> weights, int32_t k, const PageFilter& filter) {
  EVERLONG_ASSIGN_OR_RETURN(std::vector<Hit> hits, index.Scored(q, weights, filter));
  KeepBestFirst(hits, static_cast<size_t>(k), [](const Hit& hit) { return hit.page; });
  return hits;
}

// The mass of every page, 0 for one that is not scored.
inline Result<std::vector<float>> Mass(const HeadsIndex& index, std::span<const float> q,
                                       std::span<const float> weights, const PageFilter& filter) {
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<Hit> hits, index.Scored(q, weights, filter));
  std::vector<float> mass(static_cast<size_t>(index.pages()), 0.0F);
  for (const Hit& hit : hits) mass[static_cast<size_t>(hit.page)] = hit.score;
  return mass;
}

// A mass is as exact, relatively, as the scores are in fp32 absolutely.
inline void ExpectMass(const HeadsIndex& index, const Case& made, double tolerance = 2e-5) {
  const auto mass = Mass(index, made.q, made.weights, made.filter);
  ASSERT_TRUE(mass.ok()) << mass.status().ToString();
  const std::vector<double> reference = made.Kept(index.options().keys).Reference();
  ASSERT_EQ(mass->size(), reference.size());
  for (size_t page = 0; page < reference.size(); ++page) {
    EXPECT_NEAR((*mass)[page], reference[page], tolerance * reference[page] + 1e-12) << "page " << page;
  }
}

// An index of what is saved in a file alone.
inline Result<HeadsIndex> LoadHeads(const FilePath& file, const std::vector<RetrievalHead>& heads, int32_t dim,
                                    std::span<const int32_t> ordinals, const HeadsOptions& options = {}) {
  HeadsIndex index(heads, dim, options);
  EVERLONG_RETURN_IF_ERROR(index.Load(file, ordinals));
  return index;
}

// For LoadHeads: those that are kept, one after the other.
inline std::vector<int32_t> OrdinalsOf(std::span<const uint8_t> kept) {
  std::vector<int32_t> ordinals;
  int32_t next = 0;
  for (const uint8_t is_kept : kept) ordinals.push_back(is_kept != 0 ? next++ : -1);
  return ordinals;
}

inline const std::vector<RetrievalHead> kOneHead{{3, 1, 0}};
// Five query heads on two key heads, mixed up, of different layers with the same kv_head.
inline const std::vector<RetrievalHead> kGroupedHeads{{1, 0, 2}, {4, 7, 2}, {1, 1, 2}, {4, 6, 2}, {1, 2, 2}};

// Keys times 2^exponent, one dimension of them zero, and queries that make up for it.
inline Case MakeScaledCase(int exponent) {
  Case made = MakeCase({.heads = kGroupedHeads, .dim = 13, .pages = 70, .page_tokens = 40, .question = 4}, 61);
  for (std::vector<float>& page : made.pages) {
    for (size_t at = 0; at < page.size(); ++at) page[at] = at % 13 == 4 ? 0 : std::ldexp(page[at], exponent);
  }
  for (float& element : made.q) element = std::ldexp(element, -exponent);
  return made;
}

}  // namespace everlong::index

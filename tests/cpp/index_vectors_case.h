// Vectors and files for the tests of indexes that are saved.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "everlong/base/crc32c.h"
#include "everlong/base/status.h"
#include "everlong/index/vector_index.h"

namespace everlong::index {

inline std::vector<float> RandomVectors(std::mt19937_64& random, int64_t count, int32_t dimension) {
  std::normal_distribution<float> normal(0.0F, 1.0F);
  std::vector<float> vectors(static_cast<size_t>(count * dimension));
  std::ranges::generate(vectors, [&] { return normal(random); });
  return vectors;
}

inline std::vector<int64_t> Ids(int64_t first, int64_t count) {
  std::vector<int64_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

// Give both indexes the same random vectors.
inline void AddToBoth(VectorIndex& index, VectorIndex& exact, std::mt19937_64& random,
                      const std::vector<int64_t>& ids) {
  const std::vector<float> vectors = RandomVectors(random, std::ssize(ids), index.dimension());
  ASSERT_TRUE(index.Add(ids, vectors).ok());
  ASSERT_TRUE(exact.Add(ids, vectors).ok());
}

// What every index refuses, with vectors 1 and 2 of two numbers in it. Nothing has changed then.
inline void ExpectRefusals(VectorIndex& index) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto add = [&](const std::vector<int64_t>& ids, const std::vector<float>& vectors) {
    return index.Add(ids, vectors).code();
  };
  const auto search = [&](const std::vector<float>& query, int32_t k) {
    return index.Search(query, k, {}).status().code();
  };
  EXPECT_EQ(add({2}, {1, 2}), StatusCode::kAlreadyExists);
  EXPECT_EQ(add({5, 5}, {1, 2, 3, 4}), StatusCode::kAlreadyExists);
  EXPECT_EQ(add({5, -1}, {1, 2, 3, 4}), StatusCode::kInvalidArgument);
  EXPECT_EQ(add({5}, {1, 2, 3}), StatusCode::kInvalidArgument);
  EXPECT_EQ(add({5}, {1, nan}), StatusCode::kInvalidArgument);
  EXPECT_EQ(add({5}, {1, 1e30F}), StatusCode::kInvalidArgument);
  EXPECT_EQ(search({1, 1}, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(search({1, 1, 1}, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(search({1, nan}, 1), StatusCode::kInvalidArgument);
  EXPECT_TRUE(index.Search({}, 1, {})->empty());
  EXPECT_TRUE(index.Search(std::vector<float>{1, 1}, 5, IdFilter([](int64_t) { return false; }))->at(0).empty());
  EXPECT_EQ(index.size(), 2);
}

// While `change` runs, two threads search. `check` looks at the hits of each query, which are distinct.
template <class Check, class Change>
void SearchBeside(const VectorIndex& index, std::span<const float> queries, int32_t k, const Check& check,
                  const Change& change) {
  std::vector<std::jthread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        const auto found = index.Search(queries, k, {});
        ASSERT_TRUE(found.ok());
        for (const VectorHits& hits : *found) {
          std::set<int64_t> ids;
          for (const VectorHit& hit : hits) EXPECT_TRUE(ids.insert(hit.id).second);
          check(ids);
        }
      }
    });
  }
  change();
}

inline std::string BytesOf(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void WriteBytes(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

// Put the checksum at the end of a file's bytes that these have now.
inline void Checksum(std::string& bytes) {
  const size_t body = bytes.size() - sizeof(uint32_t);
  const uint32_t crc = Crc32c(std::as_bytes(std::span(bytes)).first(body));
  std::memcpy(bytes.data() + body, &crc, sizeof crc);
}

// Put the checksum of the bytes before `at` there: of what says how the rest of a file lies.
inline void ChecksumSoFar(std::string& bytes, size_t at) {
  const uint32_t crc = Crc32c(std::as_bytes(std::span(bytes)).first(at));
  std::memcpy(bytes.data() + at, &crc, sizeof crc);
}

// `load` refuses the file with a bit changed, or cut short, at every `step` bytes; and without the file.
template <class Load>
void ExpectDamageIsCorrupt(const std::filesystem::path& file, size_t step, const Load& load) {
  const std::string bytes = BytesOf(file);
  const auto refuses = [&](const std::string& changed) {
    WriteBytes(file, changed);
    EXPECT_EQ(load(file).status().code(), StatusCode::kCorrupt);
  };
  for (size_t at = 0; at < bytes.size(); at += step) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    refuses(changed);
    refuses(bytes.substr(0, at));
  }
  refuses(bytes + "x");
  std::filesystem::remove(file);
  EXPECT_EQ(load(file).status().code(), StatusCode::kNotFound);
}

}  // namespace everlong::index

// How much a catalog has of everything: counted once, then kept.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "everlong/base/sqlite.h"
#include "everlong/base/status.h"

namespace everlong::store {

// So many, and their bytes.
struct Amount {
  int64_t count = 0;
  int64_t bytes = 0;
  bool operator==(const Amount&) const = default;
};

// Of the live blocks, and of all of the graph.
struct CatalogTotals {
  int64_t blocks = 0;
  int64_t pages = 0;
  int64_t tokens = 0;
  int64_t payload_bytes = 0;
  std::map<int64_t, Amount> records;      // by segment; with their headers and padding
  std::map<std::string, Amount> tensors;  // by name
  int64_t nodes = 0;
  int64_t edges = 0;
  bool operator==(const CatalogTotals&) const = default;
};

// Count all, in the caller's transaction. It costs as much as the catalog has rows.
Result<CatalogTotals> CountTotals(Database& database);

// A change of the catalog takes the totals along. They are unknown meanwhile, and again where the change fails.
class ChangingTotals {
 public:
  // `totals` outlives it. What is unknown stays so, and costs nothing.
  explicit ChangingTotals(std::optional<CatalogTotals>& totals)
      : totals_(totals), changed_(std::exchange(totals, std::nullopt)) {}

  // Take off what a live block has, or add it: before the change and after it, in its transaction.
  Status Leave(Database& database, int64_t block) { return Add(database, block, -1); }
  Status Enter(Database& database, int64_t block) { return Add(database, block, 1); }
  void AddToGraph(int64_t nodes, int64_t edges) {
    if (!changed_) return;
    changed_->nodes += nodes;
    changed_->edges += edges;
  }
  // The change is committed.
  void Keep() { totals_ = std::move(changed_); }

 private:
  Status Add(Database& database, int64_t block, int64_t sign);

  std::optional<CatalogTotals>& totals_;
  std::optional<CatalogTotals> changed_;
};

}  // namespace everlong::store

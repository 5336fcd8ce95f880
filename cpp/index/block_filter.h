// The blocks of a table that a search may look into.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "everlong/base/role.h"
#include "everlong/index/block_table.h"
#include "everlong/index/page_filter.h"

namespace everlong::index {

// A SearchFilter with numbers for names. Refers to the table, which must not change meanwhile.
class BlockFilter {
 public:
  BlockFilter(const BlockTable& table, const SearchFilter& filter);

  // Return whether a search may look into a block. It does not ask whether the block was forgotten.
  [[nodiscard]] bool Passes(const BlockEntry& block) const;
  // Return the ids of these blocks that are not forgotten, ascending.
  [[nodiscard]] std::vector<int64_t> Blocks() const;
  // Return all pages of these blocks that are neither forgotten nor sinks.
  [[nodiscard]] PageFilter Pages() const;

 private:
  [[nodiscard]] const BlockTable::OfRole& OfRole(Role role) const { return table_.roles_[static_cast<size_t>(role)]; }
  [[nodiscard]] PageFilter PagesOfRoles() const;
  // Return the numbers of blocks that may pass, ascending. All blocks that pass are among them.
  [[nodiscard]] std::vector<int32_t> Candidates() const;
  // Return the numbers of blocks of the filter's time, ascending; none if there are more than `most`.
  [[nodiscard]] std::optional<std::vector<int32_t>> InTime(size_t most) const;

  const BlockTable& table_;
  std::vector<int32_t> sources_;  // ascending; any of these, unless `any_source_`
  std::vector<int32_t> tags_;     // ascending; all of these, and the next
  std::vector<int32_t> newest_;   // the last ones of their kind
  bool any_source_;
  std::optional<double> since_;
  std::optional<double> before_;
  std::optional<double> happened_since_;
  std::optional<double> happened_before_;
  Roles roles_;
  bool nothing_ = false;  // no block has some name that is asked for
};

}  // namespace everlong::index

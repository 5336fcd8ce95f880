// The payloads of a memory's blocks, whatever each is coded as. Most blocks have the memory's codec. Of a block that
// was coded anew a tag says which it has, so that the name goes wherever the block goes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/kv/payload.h"
#include "everlong/kv/transform.h"
#include "everlong/store/memory_store.h"

namespace everlong::os {

inline constexpr std::string_view kCodecTag = "everlong:codec=";  // then a codec's name
// The name of a transform, and of the memory's own file that has its tables: this, then the CRC-32C of the file as
// eight hexadecimal digits.
inline constexpr std::string_view kTransformName = "transform.";

// How a block is coded, and what its reads give.
struct BlockCoding {
  std::string name;          // of the codec
  kv::PayloadLayout layout;  // of what reads give: fp32 where there is a transform
  std::shared_ptr<const kv::Transform> transform;
};

// A page to read: layers [first_layer, first_layer + layers), laid out as the block's coding says.
struct PayloadRead {
  int64_t block = 0;
  int32_t page = 0;
  int32_t tokens = 0;  // of the page
  int32_t first_layer = 0;
  int32_t layers = 0;
  std::span<std::byte> out;
};

// Thread-safe.
class Payloads {
 public:
  // Both outlive it.
  Payloads(const store::MemoryStore& store, const kv::PayloadLayout& layout) : store_(store), layout_(layout) {}

  // Return the codec of this name. kInvalidArgument for a name that is none; kNotFound or kCorrupt where the memory
  // lacks the tables of a transform or they are damaged; kModelMismatch for tables of another model.
  [[nodiscard]] Result<BlockCoding> Named(std::string_view name) const;
  // Return how a block with these tags is coded.
  [[nodiscard]] Result<BlockCoding> CodingOf(std::span<const std::string> tags) const;
  // Return how a block of the store is coded now.
  [[nodiscard]] Result<BlockCoding> CodingOf(int64_t block) const;
  // Return the tags of a block with these tags once it is coded as `coding`.
  [[nodiscard]] std::vector<std::string> TagsOf(std::span<const std::string> tags, const BlockCoding& coding) const;

  // Whether a tag says how a block is coded. Return `tags` with those of `block` that do, in place of its own.
  [[nodiscard]] static bool IsCodecTag(std::string_view tag) { return tag.starts_with(kCodecTag); }
  [[nodiscard]] static std::vector<std::string> WithCodecOf(const store::BlockInfo& block,
                                                            std::span<const std::string> tags);

  // Return the blocks that lack the tables of their transform, or whose tables are damaged or of another model. The
  // files are read anew.
  [[nodiscard]] Result<std::vector<store::Damage>> WithoutTables() const;

  // Begin to read pages, each as its block is coded now. kBusy where that is not `codec`, or changes meanwhile. The
  // outcome of the reads is `Wait`'s. It may be destroyed before this object, never after.
  [[nodiscard]] Result<std::unique_ptr<store::PendingReads>> Start(std::span<const PayloadRead> reads,
                                                                   kv::Codec codec) const;

  // Return pages of fp32 [layers] of `tokens` tokens coded as `coding` says.
  [[nodiscard]] static Result<std::vector<std::byte>> Encode(std::span<const std::byte> plain, int32_t tokens,
                                                             const BlockCoding& coding);

 private:
  // Return the codings of the blocks of reads that lie one behind the other. kBusy where one is not read as `codec`.
  [[nodiscard]] Result<std::vector<BlockCoding>> CodingsOf(std::span<const PayloadRead> reads, kv::Codec codec) const;
  // Read a transform's tables.
  [[nodiscard]] Result<std::shared_ptr<const kv::Transform>> Load(const std::string& name) const;
  [[nodiscard]] Result<std::shared_ptr<const kv::Transform>> TransformNamed(const std::string& name) const;

  const store::MemoryStore& store_;
  const kv::PayloadLayout& layout_;
  mutable std::mutex guard_;
  mutable std::map<std::string, std::shared_ptr<const kv::Transform>> transforms_;
};

}  // namespace everlong::os

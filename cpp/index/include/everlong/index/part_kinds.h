// The table of the kinds of parts that a memory may have.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/index/index_part.h"
#include "everlong/index/part.h"

namespace everlong::index {

struct PartKind {
  // Its name in requests, and the name of its file in a memory's index/.
  std::string_view name;
  // The input that it is asked by (Query::inputs); empty: the token ids. A search without it does not ask the part.
  std::string_view input;
  std::vector<std::string_view> more_inputs;  // what else it takes
  // The message for a search that has this input while the part is missing.
  std::string_view missing;

  enum class Made : uint8_t {
    kWithMemory,    // made with the memory
    kWhenAsked,     // made by the first search that has its input, because it costs a read of every page
    kByItsOptions,  // made once the caller has given its options
  };
  Made made = Made::kWithMemory;
  bool saved = true;         // to files, where the memory is in a folder
  bool in_segments = false;  // a file of it may cover some of the blocks (Part::Save, Part::Load)
  bool needs_keys = false;   // a memory of text alone does not have it
  bool from_model = false;   // what it compares are the model's keys or states, which text alone does not give
  bool from_pack = false;    // its vectors are tensors of blocks, which a trained pack makes (meaning.h)
  Voice voice;               // of its ranking of pages
  Voice group_voice;         // of its ranking of groups, if it has one
  bool from_caller = false;  // its contents cannot be read again from the store (Part::AddVectors)

  // Make an empty part; null where the caller's options make it.
  Result<std::unique_ptr<Part>> (*make)(const PartContext& context) = nullptr;
  // For from_caller: make an empty part with the settings of a saved file; null when the settings are invalid.
  std::unique_ptr<Part> (*from_settings)(const PartContext& context, const std::string& settings) = nullptr;
  // For kinds that take tensors: return the names of those that a file saved with these settings is made of.
  std::vector<std::string> (*tensors_of)(const std::string& settings) = nullptr;
};

// Return the kinds by IndexPart::number.
std::vector<IndexPart> AllIndexParts();
const PartKind& KindOf(IndexPart part);
// Add a kind of another library, before the first memory is opened. Names are distinct. It lives to the process' end.
IndexPart RegisterPartKind(const PartKind& kind);

}  // namespace everlong::index

#include "everlong/store/manifest.h"

#include <fcntl.h>

#include <array>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <vector>

#include "everlong/base/crc32c.h"
#include "everlong/base/file.h"
#include "manifest_file.h"

namespace everlong::store {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxManifestBytes = int64_t{64} << 20;
// How every manifest begins; the eight digits that follow are the CRC-32C of the file with '0' in their place.
constexpr std::string_view kOpening = "{\n  \"crc32c\": \"";
constexpr std::string_view kNoChecksum = "00000000";

// CRC-32C of a manifest's text with its own eight digits as '0'.
uint32_t TextChecksum(std::string_view text) {
  const auto bytes = [](std::string_view part) { return std::as_bytes(std::span(part.data(), part.size())); };
  const std::string_view after = text.substr(kOpening.size() + kNoChecksum.size());
  return Crc32c(bytes(after), Crc32c(bytes(kNoChecksum), Crc32c(bytes(kOpening))));
}

std::string Hex(uint32_t value) {
  std::array<char, 9> digits = {};
  std::snprintf(digits.data(), digits.size(), "%08x", value);
  return digits.data();
}

// Reads typed members and keeps the first complaint.
class Fields {
 public:
  Fields(const Json& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {
    if (!object.is_object()) problem_ = prefix_ + " is not an object";
  }
  void Read(const char* name, std::string& value) {
    if (const Json* member = Find(name, &Json::is_string, "text")) value = member->get_ref<const std::string&>();
  }
  void Read(const char* name, int32_t& value) {
    const Json* member = Find(name, &Json::is_number_unsigned, "a number");
    if (member == nullptr) return;
    const auto number = member->get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
      problem_ = prefix_ + name + " is out of range";
      return;
    }
    value = static_cast<int32_t>(number);
  }
  void Read(const char* name, std::map<std::string, std::string>& value) {
    const Json* member = Find(name, &Json::is_object, "an object");
    if (member == nullptr) return;
    for (const auto& [key, text] : member->items()) {  // a key may hold any character, NUL too
      if (text.is_string()) {
        value[key] = text.get_ref<const std::string&>();
      } else if (problem_.empty()) {
        problem_ = prefix_ + name + "." + key + " is not text";
      }
    }
  }
  // The member, {} when it is missing.
  const Json& Object(const char* name) {
    static const Json kNothing = Json::object();
    const Json* member = Find(name, &Json::is_object, "an object");
    return member == nullptr ? kNothing : *member;
  }
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  const Json* Find(const char* name, bool (Json::*is_type)() const noexcept, const char* type) {
    if (!problem_.empty()) return nullptr;
    const auto found = object_.find(name);
    if (found == object_.end()) {
      problem_ = prefix_ + name + " is missing";
    } else if (!((*found).*is_type)()) {
      problem_ = prefix_ + name + " is not " + type;
    } else {
      return &*found;
    }
    return nullptr;
  }

  const Json& object_;
  std::string prefix_;
  std::string problem_;
};

Result<std::string> ReadText(const std::filesystem::path& path) {
  EVERLONG_ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(path, O_RDONLY));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t size, FileSize(file, path));
  if (size > kMaxManifestBytes) {
    return CorruptError("no manifest has " + std::to_string(size) + " bytes: '" + path.string() + "'");
  }
  std::string text(static_cast<size_t>(size), '\0');
  EVERLONG_ASSIGN_OR_RETURN(const int64_t count, ReadAt(file, path, 0, std::as_writable_bytes(std::span(text))));
  text.resize(static_cast<size_t>(count));
  return text;
}

std::string Problem(const Manifest& manifest) {
  const Geometry& geometry = manifest.geometry;
  const int32_t least = TextAlone(geometry) ? 0 : 1;  // of what has no keys
  const std::initializer_list<std::tuple<const char*, int32_t, int32_t>> sizes = {
      {"layers", geometry.layers, 0},
      {"kv_heads", geometry.kv_heads, least},
      {"head_dim", geometry.head_dim, least},
      {"page_tokens", geometry.page_tokens, 1}};
  for (const auto& [name, value, smallest] : sizes) {
    if (value < smallest) {
      return std::string("geometry.") + name + " is " + std::to_string(value) + ", expected at least " +
             std::to_string(smallest);
    }
  }
  if (geometry.layers > kMaxLayers) {
    return "geometry.layers is " + std::to_string(geometry.layers) + ", expected at most " + std::to_string(kMaxLayers);
  }
  if (geometry.codec.empty()) return "geometry.codec is empty";
  return {};
}

Json ToJson(const Manifest& manifest) {
  const Fingerprint& fingerprint = manifest.fingerprint;
  const Geometry& geometry = manifest.geometry;
  return {{"crc32c", kNoChecksum},
          {"format_version", manifest.format_version},
          {"fingerprint",
           {{"weights", fingerprint.weights}, {"rope", fingerprint.rope}, {"tokenizer", fingerprint.tokenizer}}},
          {"geometry",
           {{"layers", geometry.layers},
            {"kv_heads", geometry.kv_heads},
            {"head_dim", geometry.head_dim},
            {"page_tokens", geometry.page_tokens},
            {"codec", geometry.codec}}},
          {"attributes", manifest.attributes}};
}

}  // namespace

Status ValidateManifest(const Manifest& manifest) {
  const std::string problem = Problem(manifest);
  return problem.empty() ? OkStatus() : InvalidArgumentError("manifest: " + problem);
}

Status CheckFingerprint(const Manifest& manifest, const Fingerprint& expected) {
  const Fingerprint& stored = manifest.fingerprint;
  std::string differs;
  const auto compare = [&differs](const char* name, const std::string& is, const std::string& should) {
    if (is == should) return;
    differs += differs.empty() ? "" : "; ";
    differs += std::string(name) + " is '" + is + "' in the memory and '" + should + "' in the model";
  };
  compare("weights", stored.weights, expected.weights);
  compare("rope", stored.rope, expected.rope);
  compare("tokenizer", stored.tokenizer, expected.tokenizer);
  return differs.empty() ? OkStatus() : ModelMismatchError("the memory belongs to another model: " + differs);
}

Result<Manifest> ParseManifest(std::string_view text, std::string_view name) {
  const auto corrupt = [&name](const std::string& what) {
    return CorruptError("manifest '" + std::string(name) + "': " + what);
  };
  if (!text.starts_with(kOpening) || text.size() < kOpening.size() + kNoChecksum.size()) {
    return corrupt("it does not begin with its checksum");
  }
  uint32_t stored = 0;
  const char* digits = text.data() + kOpening.size();
  const auto [end, error] = std::from_chars(digits, digits + kNoChecksum.size(), stored, 16);
  if (error != std::errc() || end != digits + kNoChecksum.size()) return corrupt("its checksum is not a number");
  if (stored != TextChecksum(text)) return corrupt("its text does not match its checksum");

  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return corrupt("it is not JSON");
  Manifest manifest;
  Fields top(json, "");
  top.Read("format_version", manifest.format_version);
  if (!top.problem().empty()) return corrupt(top.problem());
  if (manifest.format_version > kFormatVersion) {
    return NewerFormatError("manifest '" + std::string(name) + "' has format " +
                            std::to_string(manifest.format_version) + "; this everlong reads up to " +
                            std::to_string(kFormatVersion) + ": update it");
  }
  Fields fingerprint(top.Object("fingerprint"), "fingerprint.");
  fingerprint.Read("weights", manifest.fingerprint.weights);
  fingerprint.Read("rope", manifest.fingerprint.rope);
  fingerprint.Read("tokenizer", manifest.fingerprint.tokenizer);
  Fields geometry(top.Object("geometry"), "geometry.");
  geometry.Read("layers", manifest.geometry.layers);
  geometry.Read("kv_heads", manifest.geometry.kv_heads);
  geometry.Read("head_dim", manifest.geometry.head_dim);
  geometry.Read("page_tokens", manifest.geometry.page_tokens);
  geometry.Read("codec", manifest.geometry.codec);
  top.Read("attributes", manifest.attributes);
  for (const std::string& problem : {top.problem(), fingerprint.problem(), geometry.problem(), Problem(manifest)}) {
    if (!problem.empty()) return corrupt(problem);
  }
  return manifest;
}

Result<Manifest> ReadManifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kManifestFile;
  Result<std::string> read = ReadText(path);
  if (read.status().code() == StatusCode::kNotFound) {
    return NotFoundError("no memory in '" + folder.string() + "' (there is no " + kManifestFile + ")");
  }
  EVERLONG_ASSIGN_OR_RETURN(const std::string text, std::move(read));
  return ParseManifest(text, path.string());
}

Result<std::string> ManifestText(const Manifest& manifest) {
  EVERLONG_RETURN_IF_ERROR(ValidateManifest(manifest));
  const Json json = ToJson(manifest);
  std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  if (std::ssize(text) > kMaxManifestBytes) {
    return InvalidArgumentError("manifest: its text has " + std::to_string(text.size()) + " bytes, expected at most " +
                                std::to_string(kMaxManifestBytes));
  }
  // What is not UTF-8 was replaced just now, and so reads back as something else.
  if (Json::parse(text, nullptr, false) != json) return InvalidArgumentError("manifest: a text is not valid UTF-8");
  EVERLONG_CHECK(text.starts_with(kOpening));
  text.replace(kOpening.size(), kNoChecksum.size(), Hex(TextChecksum(text)));
  return text;
}

Status WriteManifest(const std::filesystem::path& folder, const Manifest& manifest) {
  EVERLONG_ASSIGN_OR_RETURN(const std::string text, ManifestText(manifest));
  return ReplaceFile(folder / kManifestFile, folder / kManifestTemporary, std::as_bytes(std::span(text)));
}

}  // namespace everlong::store

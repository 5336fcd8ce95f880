#include "everlong/store/manifest.h"

#include <array>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <tuple>
#include <vector>

#include "everlong/base/crc32c.h"
#include "everlong/base/file.h"
#include "json_text.h"
#include "manifest_file.h"

namespace everlong::store {
namespace {

constexpr int64_t kMaxManifestBytes = int64_t{64} << 20;
// How every manifest begins. The next eight digits are the CRC-32C of the file with '0' in their place.
constexpr std::string_view kOpening = "{\n  \"crc32c\": \"";
constexpr std::string_view kNoChecksum = "00000000";

// Return the CRC-32C of a manifest's text with its own eight digits as '0'.
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

// A value as it is kept. An object or an array is kept without its contents.
struct Member {
  JsonKind kind = JsonKind::kOther;
  std::string text;
  uint64_t number = 0;
};
using Members = std::map<std::string, Member>;

// Collects the members of the manifest, and those of its objects.
class ManifestVisitor : public JsonVisitor {
 public:
  Members top;
  Members fingerprint;
  Members geometry;
  Members attributes;

  void Key(int64_t depth, std::string_view key) override {
    if (depth == 1) name_ = key;
    if (depth == 2) inner_name_ = key;
  }
  void Value(int64_t depth, const JsonValue& value) override {
    if (depth == 1) {
      top[name_] = Kept(value);
      inner_ = InnerOf(name_);
      if (inner_ != nullptr) inner_->clear();
      if (value.kind != JsonKind::kObject) inner_ = nullptr;
    } else if (depth == 2 && inner_ != nullptr) {
      (*inner_)[inner_name_] = Kept(value);
    }
  }

 private:
  static Member Kept(const JsonValue& value) { return {value.kind, std::string(value.text), value.number}; }
  Members* InnerOf(std::string_view name) {
    if (name == "fingerprint") return &fingerprint;
    if (name == "geometry") return &geometry;
    return name == "attributes" ? &attributes : nullptr;
  }

  std::string name_;
  std::string inner_name_;
  Members* inner_ = nullptr;  // of the current object; nullptr: nothing of it is kept
};

// Reads typed members and keeps the first complaint.
class Fields {
 public:
  Fields(const Members& members, std::string prefix) : members_(members), prefix_(std::move(prefix)) {}
  void Read(const char* name, std::string& value) {
    if (const Member* member = Find(name, JsonKind::kText, "text")) value = member->text;
  }
  void Read(const char* name, int32_t& value) {
    const Member* member = Find(name, JsonKind::kUnsigned, "a number");
    if (member == nullptr) return;
    if (std::in_range<int32_t>(member->number)) {
      value = static_cast<int32_t>(member->number);
    } else {
      problem_ = prefix_ + name + " is out of range";
    }
  }
  // Read every member, each of which must be text.
  void ReadAll(std::map<std::string, std::string>& value) {
    for (const auto& [key, member] : members_) {  // a key may hold any character, NUL too
      if (member.kind == JsonKind::kText) {
        value[key] = member.text;
      } else if (problem_.empty()) {
        problem_ = prefix_ + key + " is not text";
      }
    }
  }
  void RequireObject(const char* name) { static_cast<void>(Find(name, JsonKind::kObject, "an object")); }
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  const Member* Find(const char* name, JsonKind kind, const char* type) {
    if (!problem_.empty()) return nullptr;
    const auto found = members_.find(name);
    if (found == members_.end()) {
      problem_ = prefix_ + name + " is missing";
    } else if (found->second.kind != kind) {
      problem_ = prefix_ + name + " is not " + type;
    } else {
      return &found->second;
    }
    return nullptr;
  }

  const Members& members_;
  std::string prefix_;
  std::string problem_;
};

std::string Problem(const Manifest& manifest) {
  const Geometry& geometry = manifest.geometry;
  const int32_t least = TextAlone(geometry) ? 0 : 1;  // a memory of text alone has no keys
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

// Until format 3, channels of FP8 keys had no centres. What was so is called so since.
constexpr int32_t kCentredFormat = 3;
void NameAsNow(Manifest& manifest) {
  std::string& codec = manifest.geometry.codec;
  if (manifest.format_version < kCentredFormat && (codec == "e4m3" || codec == "e5m2")) codec += "-plain";
}

constexpr int kIndent = 2;

// Writes an object, one member a line. It remembers a text that is not valid UTF-8.
class ObjectText {
 public:
  explicit ObjectText(int indent) : indent_(indent, ' ') {}
  void Text(std::string_view name, std::string_view value) { Raw(name, Quoted(value)); }
  void Number(std::string_view name, int64_t value) { Raw(name, std::to_string(value)); }
  void Object(std::string_view name, ObjectText value) {
    valid_ = valid_ && value.valid_;
    Raw(name, std::move(value).Done());
  }
  [[nodiscard]] bool valid() const { return valid_; }
  [[nodiscard]] std::string Done() && {
    return members_.empty() ? "{}" : "{\n" + members_ + "\n" + indent_.substr(kIndent) + "}";
  }

 private:
  std::string Quoted(std::string_view text) {
    std::optional<std::string> quoted = JsonText(text);
    valid_ = valid_ && quoted.has_value();
    return quoted ? *std::move(quoted) : std::string();
  }
  void Raw(std::string_view name, const std::string& value) {
    members_ += (members_.empty() ? "" : ",\n") + indent_ + Quoted(name) + ": " + value;
  }

  std::string indent_;  // of the members
  std::string members_;
  bool valid_ = true;
};

ObjectText ToJson(const Manifest& manifest) {
  ObjectText fingerprint(2 * kIndent);
  fingerprint.Text("weights", manifest.fingerprint.weights);
  fingerprint.Text("rope", manifest.fingerprint.rope);
  fingerprint.Text("tokenizer", manifest.fingerprint.tokenizer);
  ObjectText geometry(2 * kIndent);
  geometry.Number("layers", manifest.geometry.layers);
  geometry.Number("kv_heads", manifest.geometry.kv_heads);
  geometry.Number("head_dim", manifest.geometry.head_dim);
  geometry.Number("page_tokens", manifest.geometry.page_tokens);
  geometry.Text("codec", manifest.geometry.codec);
  ObjectText attributes(2 * kIndent);
  for (const auto& [name, text] : manifest.attributes) attributes.Text(name, text);
  ObjectText top(kIndent);
  top.Text("crc32c", kNoChecksum);
  top.Number("format_version", manifest.format_version);
  top.Object("fingerprint", std::move(fingerprint));
  top.Object("geometry", std::move(geometry));
  top.Object("attributes", std::move(attributes));
  return top;
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

  ManifestVisitor json;  // the text begins with a brace, so JSON here is an object
  if (!VisitJson(text, json)) return corrupt("it is not JSON");
  Manifest manifest;
  Fields top(json.top, "");
  top.Read("format_version", manifest.format_version);
  if (!top.problem().empty()) return corrupt(top.problem());
  if (manifest.format_version > kFormatVersion) {
    return NewerFormatError("manifest '" + std::string(name) + "' has format " +
                            std::to_string(manifest.format_version) + "; this everlong reads up to " +
                            std::to_string(kFormatVersion) + ": update it");
  }
  top.RequireObject("fingerprint");
  Fields fingerprint(json.fingerprint, "fingerprint.");
  fingerprint.Read("weights", manifest.fingerprint.weights);
  fingerprint.Read("rope", manifest.fingerprint.rope);
  fingerprint.Read("tokenizer", manifest.fingerprint.tokenizer);
  top.RequireObject("geometry");
  Fields geometry(json.geometry, "geometry.");
  geometry.Read("layers", manifest.geometry.layers);
  geometry.Read("kv_heads", manifest.geometry.kv_heads);
  geometry.Read("head_dim", manifest.geometry.head_dim);
  geometry.Read("page_tokens", manifest.geometry.page_tokens);
  geometry.Read("codec", manifest.geometry.codec);
  top.RequireObject("attributes");
  Fields attributes(json.attributes, "attributes.");
  attributes.ReadAll(manifest.attributes);
  for (const std::string& problem :
       {top.problem(), fingerprint.problem(), geometry.problem(), attributes.problem(), Problem(manifest)}) {
    if (!problem.empty()) return corrupt(problem);
  }
  NameAsNow(manifest);
  return manifest;
}

Result<Manifest> ReadManifest(const FilePath& folder) {
  const FilePath path = folder / kManifestFile;
  const Result<std::vector<std::byte>> read = ReadWhole(path, kMaxManifestBytes);
  if (read.status().code() == StatusCode::kNotFound) {
    return NotFoundError("no memory in '" + folder.string() + "' (there is no " + kManifestFile + ")");
  }
  EVERLONG_RETURN_IF_ERROR(read.status());
  return ParseManifest({reinterpret_cast<const char*>(read->data()), read->size()}, path.string());
}

Result<std::string> ManifestText(const Manifest& manifest) {
  EVERLONG_RETURN_IF_ERROR(ValidateManifest(manifest));
  ObjectText json = ToJson(manifest);
  if (!json.valid()) return InvalidArgumentError("manifest: a text is not valid UTF-8");
  std::string text = std::move(json).Done() + "\n";
  if (std::ssize(text) > kMaxManifestBytes) {
    return InvalidArgumentError("manifest: its text has " + std::to_string(text.size()) + " bytes, expected at most " +
                                std::to_string(kMaxManifestBytes));
  }
  EVERLONG_CHECK(text.starts_with(kOpening));
  text.replace(kOpening.size(), kNoChecksum.size(), Hex(TextChecksum(text)));
  return text;
}

Status WriteManifest(const FilePath& folder, const Manifest& manifest) {
  EVERLONG_ASSIGN_OR_RETURN(const std::string text, ManifestText(manifest));
  return ReplaceFile(folder / kManifestFile, folder / kManifestTemporary, std::as_bytes(std::span(text)));
}

}  // namespace everlong::store

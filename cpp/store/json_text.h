// JSON as the store reads and writes it: value by value, never as a tree. nlohmann's tree allocates while it frees
// itself. Without memory, that ends the process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace everlong::store {

enum class JsonKind { kObject, kArray, kText, kUnsigned, kOther };  // kUnsigned: an integer without a sign

struct JsonValue {
  JsonKind kind = JsonKind::kOther;
  std::string_view text;  // of kText
  uint64_t number = 0;    // of kUnsigned
};

// It is told what a text holds, in its order. The text's own value has depth 0, what is in that has depth 1, and so on.
class JsonVisitor {
 public:
  JsonVisitor() = default;
  JsonVisitor(const JsonVisitor&) = delete;
  JsonVisitor& operator=(const JsonVisitor&) = delete;
  virtual ~JsonVisitor() = default;
  // The key of the next value of this depth.
  virtual void Key(int64_t depth, std::string_view key) = 0;
  // After an object or an array comes what is in it, one deeper. An object may have a key twice: the last one counts.
  virtual void Value(int64_t depth, const JsonValue& value) = 0;
};

// Return false when `text` is not JSON. What the visitor was told until then is void.
bool VisitJson(std::string_view text, JsonVisitor& visitor);

// Return `text` as JSON, in quotation marks; none when it is not valid UTF-8.
std::optional<std::string> JsonText(std::string_view text);

}  // namespace everlong::store

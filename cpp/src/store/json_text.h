// JSON as the store reads and writes it: value by value, never as a tree. nlohmann's tree takes memory while it gives
// its own back, and where there is none then the process ends.
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

// Is told what a text holds, in its order. The text's own value has depth 0, what is in that 1, and so on.
class JsonVisitor {
 public:
  JsonVisitor() = default;
  JsonVisitor(const JsonVisitor&) = delete;
  JsonVisitor& operator=(const JsonVisitor&) = delete;
  virtual ~JsonVisitor() = default;
  // Of the value of this depth that is next.
  virtual void Key(int64_t depth, std::string_view key) = 0;
  // Behind an object or an array comes what is in it, one deeper. An object may have a key twice: the last one counts.
  virtual void Value(int64_t depth, const JsonValue& value) = 0;
};

// False when `text` is not JSON; what was told until then means nothing.
bool VisitJson(std::string_view text, JsonVisitor& visitor);

// `text` as JSON has it, in quotation marks; none when it is not valid UTF-8.
std::optional<std::string> JsonText(std::string_view text);

}  // namespace everlong::store

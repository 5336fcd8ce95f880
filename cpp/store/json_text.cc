#include "json_text.h"

#include <nlohmann/json.hpp>

namespace everlong::store {
namespace {

using Json = nlohmann::json;

// The callbacks of nlohmann's parser. Each tells it to go on.
class Events : public nlohmann::json_sax<Json> {
 public:
  explicit Events(JsonVisitor& visitor) : visitor_(visitor) {}

  bool null() override { return Tell({}); }
  bool boolean(bool /*value*/) override { return Tell({}); }
  bool number_integer(number_integer_t /*value*/) override { return Tell({}); }
  bool number_unsigned(number_unsigned_t value) override {
    return Tell({.kind = JsonKind::kUnsigned, .text = {}, .number = value});
  }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return Tell({}); }
  bool string(string_t& value) override { return Tell({.kind = JsonKind::kText, .text = value}); }
  bool binary(binary_t& /*value*/) override { return Tell({}); }  // JSON text never has any
  bool start_object(size_t /*size*/) override { return Begin(JsonKind::kObject); }
  bool key(string_t& value) override {
    visitor_.Key(depth_, value);
    return true;
  }
  bool end_object() override { return End(); }
  bool start_array(size_t /*size*/) override { return Begin(JsonKind::kArray); }
  bool end_array() override { return End(); }
  bool parse_error(size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return false;
  }

 private:
  bool Tell(const JsonValue& value) {
    visitor_.Value(depth_, value);
    return true;
  }
  bool Begin(JsonKind kind) {
    Tell({.kind = kind, .text = {}});
    ++depth_;
    return true;
  }
  bool End() {
    --depth_;
    return true;
  }

  JsonVisitor& visitor_;
  int64_t depth_ = 0;
};

}  // namespace

bool VisitJson(std::string_view text, JsonVisitor& visitor) {
  Events events(visitor);
  return Json::sax_parse(text, &events);
}

std::optional<std::string> JsonText(std::string_view text) {
  try {
    return Json(text).dump();  // a value without others in it needs no memory to be freed
  } catch (const Json::type_error&) {
    return std::nullopt;
  }
}

}  // namespace everlong::store

// Expected failures as values. Status is as thread-safe as any value type: share copies, not references.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "everlong/base/check.h"

namespace everlong {

enum class StatusCode {
  kOk = 0,
  kInvalidArgument,  // the caller's value is wrong; the message names it, its value and what was expected
  kNotFound,         // there is no such block, page or folder
  kAlreadyExists,    // there already is a memory
  kCorrupt,          // stored bytes do not match their checksum or their format
  kIoError,          // the operating system reported an error
  kModelMismatch,    // the memory belongs to another model, RoPE or tokenizer
  kBusy,             // another writer owns the memory
  kCapacity,         // the request does not fit into a byte or frame budget
  kReadOnly,         // the memory was opened for reading
  kNewerFormat,      // a later version of everlong wrote it
};

// Return a code's name as messages write it, e.g. "CORRUPT".
std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {
    EVERLONG_CHECK(code != StatusCode::kOk);
  }

  [[nodiscard]] bool ok() const { return code_ == StatusCode::kOk; }
  [[nodiscard]] StatusCode code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }
  // Return "CORRUPT: block 7 page 2: ..." or "OK".
  [[nodiscard]] std::string ToString() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return {}; }
inline Status InvalidArgumentError(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }
inline Status NotFoundError(std::string message) { return {StatusCode::kNotFound, std::move(message)}; }
inline Status AlreadyExistsError(std::string message) { return {StatusCode::kAlreadyExists, std::move(message)}; }
inline Status CorruptError(std::string message) { return {StatusCode::kCorrupt, std::move(message)}; }
inline Status IoError(std::string message) { return {StatusCode::kIoError, std::move(message)}; }
inline Status ModelMismatchError(std::string message) { return {StatusCode::kModelMismatch, std::move(message)}; }
inline Status BusyError(std::string message) { return {StatusCode::kBusy, std::move(message)}; }
inline Status CapacityError(std::string message) { return {StatusCode::kCapacity, std::move(message)}; }
inline Status ReadOnlyError(std::string message) { return {StatusCode::kReadOnly, std::move(message)}; }
inline Status NewerFormatError(std::string message) { return {StatusCode::kNewerFormat, std::move(message)}; }

// A value, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor): reads as `return value;`
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor): `return status;`
    EVERLONG_CHECK(!status_.ok());
  }

  [[nodiscard]] bool ok() const { return value_.has_value(); }
  [[nodiscard]] const Status& status() const { return status_; }
  T& value() & {
    EVERLONG_CHECK(ok());
    return *value_;
  }
  const T& value() const& {
    EVERLONG_CHECK(ok());
    return *value_;
  }
  T&& value() && {
    EVERLONG_CHECK(ok());
    return *std::move(value_);
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace everlong

#define EVERLONG_CONCAT_INNER(a, b) a##b
#define EVERLONG_CONCAT(a, b) EVERLONG_CONCAT_INNER(a, b)

#define EVERLONG_RETURN_IF_ERROR(expr)                                                              \
  do {                                                                                              \
    if (::everlong::Status everlong_status = (expr); !everlong_status.ok()) return everlong_status; \
  } while (false)

// EVERLONG_ASSIGN_OR_RETURN(auto value, Compute());
#define EVERLONG_ASSIGN_OR_RETURN(lhs, expr) \
  EVERLONG_ASSIGN_OR_RETURN_IMPL(EVERLONG_CONCAT(everlong_result_, __LINE__), lhs, expr)
#define EVERLONG_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                                   \
  if (!(result).ok()) return (result).status();           \
  lhs = std::move(result).value()

#include "everlong/base/status.h"

namespace everlong {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "OK";
    case StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case StatusCode::kNotFound:
      return "NOT_FOUND";
    case StatusCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case StatusCode::kCorrupt:
      return "CORRUPT";
    case StatusCode::kIoError:
      return "IO_ERROR";
    case StatusCode::kModelMismatch:
      return "MODEL_MISMATCH";
    case StatusCode::kBusy:
      return "BUSY";
    case StatusCode::kCapacity:
      return "CAPACITY";
    case StatusCode::kReadOnly:
      return "READ_ONLY";
    case StatusCode::kNewerFormat:
      return "NEWER_FORMAT";
  }
  return "UNKNOWN";
}

std::string Status::ToString() const {
  std::string text(StatusCodeName(code_));
  if (!ok()) text.append(": ").append(message_);
  return text;
}

}  // namespace everlong

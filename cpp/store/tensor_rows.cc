#include "tensor_rows.h"

#include <string>
#include <utility>

#include "everlong/base/crc32c.h"

namespace everlong::store {

std::string_view NamePrefix(PayloadKind record) {
  switch (record) {
    case PayloadKind::kDetail:
      return "detail/";
    case PayloadKind::kIndex:
      return "index/";
    case PayloadKind::kText:
      return "text/";
    default:
      return "";
  }
}

Result<std::vector<TensorRow>> TensorRowsOf(PayloadKind record, std::span<const std::byte> payload) {
  EVERLONG_ASSIGN_OR_RETURN(std::vector<TensorPlace> places, ListTensors(payload));
  std::vector<TensorRow> rows;
  rows.reserve(places.size());
  for (TensorPlace& place : places) {
    const auto bytes = payload.subspan(static_cast<size_t>(place.begin), static_cast<size_t>(place.info.bytes));
    place.info.name.insert(0, NamePrefix(record));
    rows.push_back({std::move(place.info), record, place.begin, Crc32c(bytes), std::ssize(places)});
  }
  return rows;
}

}  // namespace everlong::store

#include "block_records.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "everlong/base/crc32c.h"

namespace everlong::store {
namespace {

constexpr size_t kSlice = size_t{32} << 10;      // of a part, which is copied while it is in the cache
constexpr int64_t kRunBytes = int64_t{2} << 20;  // that a thread takes at a time

Status Bad(const std::string& what) { return InvalidArgumentError("block draft: " + what); }

}  // namespace

Status ValidatePages(TokenSpan span, std::span<const std::byte> payload, std::span<const int64_t> page_bytes,
                     const Geometry& geometry) {
  if (TextAlone(geometry)) return Bad("a payload, in a memory of text alone");
  const int64_t pages = (span.size() + geometry.page_tokens - 1) / geometry.page_tokens;
  if (static_cast<int64_t>(page_bytes.size()) != pages) {
    return Bad(std::to_string(page_bytes.size()) + " pages for the span " + NameOf(span) + ", expected " +
               std::to_string(pages) + " of " + std::to_string(geometry.page_tokens) + " tokens");
  }
  auto left = static_cast<int64_t>(payload.size());
  for (size_t page = 0; page < page_bytes.size(); ++page) {
    const int64_t bytes = page_bytes[page];
    if (bytes <= 0 || bytes % geometry.layers != 0) {
      return Bad("page " + std::to_string(page) + " has " + std::to_string(bytes) +
                 " bytes, expected a positive multiple of " + std::to_string(geometry.layers) + " layers");
    }
    if (bytes > left) return Bad("payload has " + std::to_string(payload.size()) + " bytes, too few for its pages");
    left -= bytes;
  }
  if (left != 0) {
    return Bad("payload has " + std::to_string(payload.size()) + " bytes, " + std::to_string(left) +
               " more than its pages");
  }
  return OkStatus();
}

Status ValidateBlock(const BlockDraft& draft) {
  const TokenSpan& span = draft.span;
  if (span.begin < 0 || span.empty()) return Bad("span is " + NameOf(span) + ", expected 0 <= begin < end");
  if (span.size() > std::numeric_limits<int32_t>::max()) return Bad("span " + NameOf(span) + " is too long");
  const std::string tokens = std::to_string(span.size()) + ", the tokens of the block";
  if (static_cast<int64_t>(draft.token_ids.size()) != span.size()) {
    return Bad("token_ids has " + std::to_string(draft.token_ids.size()) + " ids, expected " + tokens);
  }
  if (draft.sink_tokens < 0 || draft.sink_tokens > span.size()) {
    return Bad("sink_tokens is " + std::to_string(draft.sink_tokens) + ", expected 0 to " + tokens);
  }
  if (!RoleOf(static_cast<int64_t>(draft.role))) {
    return Bad("role is " + std::to_string(static_cast<int64_t>(draft.role)) + ", expected one of Role");
  }
  return std::isfinite(draft.created_at) ? OkStatus() : Bad("created_at is not finite");
}

Status ValidateDraft(const BlockDraft& draft, const Geometry& geometry) {
  EVERLONG_RETURN_IF_ERROR(ValidateBlock(draft));
  EVERLONG_RETURN_IF_ERROR(ValidateTensors(draft.tensors));
  EVERLONG_RETURN_IF_ERROR(ValidateChange(draft.graph, true));
  if (draft.payload.empty() && draft.page_bytes.empty()) return OkStatus();
  return ValidatePages(draft.span, draft.payload, draft.page_bytes, geometry);
}

void BlockRecords::AddPages(std::span<const std::byte> payload, std::span<const int64_t> page_bytes,
                            const Geometry& geometry) {
  size_t offset = 0;
  for (size_t page = 0; page < page_bytes.size(); ++page) {
    const std::span<const std::byte> bytes = payload.subspan(offset, static_cast<size_t>(page_bytes[page]));
    offset += bytes.size();
    RecordHeader header;
    header.page = static_cast<int32_t>(page);
    header.tokens = static_cast<int32_t>(
        std::min<int64_t>(geometry.page_tokens, span_.size() - static_cast<int64_t>(page) * geometry.page_tokens));
    header.part_bytes = page_bytes[page] / geometry.layers;
    header.part_crcs.resize(static_cast<size_t>(geometry.layers));
    headers_.push_back(std::move(header));
    payloads_.push_back(bytes);
  }
}

void BlockRecords::AddTensors(std::span<const std::byte> file) {
  RecordHeader header;
  header.kind = PayloadKind::kTensors;
  header.tokens = static_cast<int32_t>(span_.size());
  header.part_bytes = std::ssize(file);
  header.part_crcs.resize(1);
  headers_.push_back(std::move(header));
  payloads_.push_back(file);
}

size_t BlockRecords::bytes() const {
  int64_t bytes = 0;
  for (const RecordHeader& header : headers_) bytes += RecordBytes(std::ssize(header.part_crcs), header.part_bytes);
  return static_cast<size_t>(bytes);
}

void BlockRecords::ReadParts(std::span<std::byte> out) {
  struct Part {
    std::span<const std::byte> bytes;
    uint32_t* crc = nullptr;
    std::byte* to = nullptr;
  };
  std::vector<Part> parts;
  int64_t all = 0;
  size_t at = 0;
  for (size_t page = 0; page < headers_.size(); ++page) {
    RecordHeader& header = headers_[page];
    const auto part_bytes = static_cast<size_t>(header.part_bytes);
    const std::span<std::byte> record =
        out.empty() ? out : out.subspan(at + static_cast<size_t>(RecordHeaderBytes(std::ssize(header.part_crcs))));
    for (size_t part = 0; part < header.part_crcs.size(); ++part) {
      parts.push_back({payloads_[page].subspan(part * part_bytes, part_bytes), &header.part_crcs[part],
                       out.empty() ? nullptr : record.data() + part * part_bytes});
    }
    all += std::ssize(payloads_[page]);
    at += static_cast<size_t>(RecordBytes(std::ssize(header.part_crcs), header.part_bytes));
  }
  const auto read = [](const Part& part) {
    uint32_t crc = 0;
    for (size_t done = 0; done < part.bytes.size(); done += kSlice) {
      const std::span<const std::byte> slice = part.bytes.subspan(done, std::min(kSlice, part.bytes.size() - done));
      crc = Crc32c(slice, crc);
      if (part.to != nullptr) std::memcpy(part.to + done, slice.data(), slice.size());
    }
    *part.crc = crc;
  };
  // Neighbours go together, so that no two threads touch the same huge page first.
  const auto runs = static_cast<size_t>(std::max<int64_t>(1, all / kRunBytes));
  RunTogether(threads_, RamHelpers(all), runs, [&](size_t run) {
    const size_t last = (run + 1) * parts.size() / runs;
    for (size_t part = run * parts.size() / runs; part < last; ++part) read(parts[part]);
  });
}

std::vector<std::span<const std::byte>> BlockRecords::Pieces() {
  static constexpr std::array<std::byte, kRecordAlignment> kPadding = {};
  ReadParts({});
  encoded_.reserve(headers_.size());
  std::vector<std::span<const std::byte>> pieces;
  pieces.reserve(3 * headers_.size());
  for (size_t page = 0; page < headers_.size(); ++page) {
    encoded_.push_back(EncodeRecordHeader(headers_[page]));
    const auto bytes = static_cast<int64_t>(payloads_[page].size());
    pieces.emplace_back(encoded_.back());
    pieces.emplace_back(payloads_[page]);
    pieces.emplace_back(std::span(kPadding).first(static_cast<size_t>(AlignRecord(bytes) - bytes)));
  }
  return pieces;
}

void BlockRecords::CopyTo(std::span<std::byte> out) {
  ReadParts(out);
  for (size_t page = 0; page < headers_.size(); ++page) {
    const RecordHeader& header = headers_[page];
    const auto record = out.first(static_cast<size_t>(RecordBytes(std::ssize(header.part_crcs), header.part_bytes)));
    out = out.subspan(record.size());
    const std::vector<std::byte> encoded = EncodeRecordHeader(header);
    std::ranges::copy(encoded, record.begin());
    std::ranges::fill(record.subspan(encoded.size() + payloads_[page].size()), std::byte{0});
  }
}

Result<std::vector<PageRow>> BlockRecords::Write(int64_t block, SegmentSet& segments) {
  std::vector<PageRow> rows;
  if (headers_.empty()) return rows;
  for (RecordHeader& header : headers_) header.block = block;
  EVERLONG_ASSIGN_OR_RETURN(SegmentSpot spot, segments.Append(*this));
  rows.reserve(headers_.size());
  for (const RecordHeader& header : headers_) {
    rows.push_back({spot.segment, spot.offset, header.part_bytes, header.part_crcs});
    spot.offset += RecordBytes(std::ssize(header.part_crcs), header.part_bytes);
  }
  return rows;
}

}  // namespace everlong::store

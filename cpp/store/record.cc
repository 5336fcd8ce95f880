#include "record.h"

#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "everlong/base/check.h"
#include "everlong/base/crc32c.h"

namespace everlong::store {
namespace {

static_assert(std::endian::native == std::endian::little, "records are written in the machine's byte order");

constexpr char kMagic[] = {'E', 'V', 'L', 'K', 'V', 'R', 'E', 'C'};
constexpr uint32_t kRecordVersion = 1;

// Offsets of the header's fields.
constexpr size_t kAtMagic = 0;
constexpr size_t kAtVersion = 8;
constexpr size_t kAtKind = 12;
constexpr size_t kAtBlock = 16;
constexpr size_t kAtPage = 24;
constexpr size_t kAtTokens = 28;
constexpr size_t kAtParts = 32;
constexpr size_t kAtHeaderBytes = 36;
constexpr size_t kAtPartBytes = 40;
constexpr size_t kAtHeaderCrc = 48;
constexpr size_t kAtPartCrcs = 52;

template <class T>
void Put(std::vector<std::byte>& header, size_t at, T value) {
  std::memcpy(header.data() + at, &value, sizeof value);
}

template <class T>
T Get(std::span<const std::byte> header, size_t at) {
  T value;
  std::memcpy(&value, header.data() + at, sizeof value);
  return value;
}

}  // namespace

int64_t RecordHeaderBytes(int64_t parts) { return AlignRecord(static_cast<int64_t>(kAtPartCrcs) + 4 * parts); }

int64_t RecordBytes(int64_t parts, int64_t part_bytes) {
  return RecordHeaderBytes(parts) + AlignRecord(parts * part_bytes);
}

std::vector<std::byte> EncodeRecordHeader(const RecordHeader& header) {
  const int64_t bytes = RecordHeaderBytes(static_cast<int64_t>(header.part_crcs.size()));
  std::vector<std::byte> out(static_cast<size_t>(bytes));
  std::memcpy(out.data() + kAtMagic, kMagic, sizeof kMagic);
  Put(out, kAtVersion, kRecordVersion);
  Put(out, kAtKind, static_cast<uint32_t>(header.kind));
  Put(out, kAtBlock, static_cast<uint64_t>(header.block));
  Put(out, kAtPage, static_cast<uint32_t>(header.page));
  Put(out, kAtTokens, static_cast<uint32_t>(header.tokens));
  Put(out, kAtParts, static_cast<uint32_t>(header.part_crcs.size()));
  Put(out, kAtHeaderBytes, static_cast<uint32_t>(bytes));
  Put(out, kAtPartBytes, static_cast<uint64_t>(header.part_bytes));
  std::memcpy(out.data() + kAtPartCrcs, header.part_crcs.data(), 4 * header.part_crcs.size());
  Put(out, kAtHeaderCrc, Crc32c(out));  // over the header with this field still zero
  return out;
}

Result<RecordHeader> DecodeRecordHeader(std::span<const std::byte> bytes) {
  const auto bad = [](const char* what) { return CorruptError(std::string("record header: ") + what); };
  if (bytes.size() < kAtPartCrcs) return bad("too short");
  if (std::memcmp(bytes.data() + kAtMagic, kMagic, sizeof kMagic) != 0) return bad("no record begins here");
  const auto parts = int64_t{Get<uint32_t>(bytes, kAtParts)};
  const auto header_bytes = int64_t{Get<uint32_t>(bytes, kAtHeaderBytes)};
  if (parts == 0) return bad("it has no parts");
  if (header_bytes != RecordHeaderBytes(parts) || header_bytes > std::ssize(bytes)) return bad("it has another size");
  constexpr std::array<std::byte, sizeof(uint32_t)> kZero = {};
  const std::span<const std::byte> all = bytes.first(static_cast<size_t>(header_bytes));
  uint32_t crc = Crc32c(kZero, Crc32c(all.first(kAtHeaderCrc)));
  crc = Crc32c(all.subspan(kAtPartCrcs), crc);
  if (crc != Get<uint32_t>(bytes, kAtHeaderCrc)) return bad("checksum mismatch");
  if (Get<uint32_t>(bytes, kAtVersion) != kRecordVersion) return bad("another version");
  RecordHeader header;
  header.kind = static_cast<PayloadKind>(Get<uint32_t>(bytes, kAtKind));
  header.block = static_cast<int64_t>(Get<uint64_t>(bytes, kAtBlock));
  header.page = static_cast<int32_t>(Get<uint32_t>(bytes, kAtPage));
  header.tokens = static_cast<int32_t>(Get<uint32_t>(bytes, kAtTokens));
  header.part_bytes = static_cast<int64_t>(Get<uint64_t>(bytes, kAtPartBytes));
  header.part_crcs.resize(static_cast<size_t>(parts));
  std::memcpy(header.part_crcs.data(), bytes.data() + kAtPartCrcs, 4 * header.part_crcs.size());
  return header;
}

std::vector<uint32_t> PartChecksums(std::span<const std::byte> page, int64_t parts) {
  EVERLONG_CHECK(parts > 0 && page.size() % static_cast<size_t>(parts) == 0);
  const size_t part_bytes = page.size() / static_cast<size_t>(parts);
  std::vector<uint32_t> crcs(static_cast<size_t>(parts));
  for (size_t part = 0; part < crcs.size(); ++part) crcs[part] = Crc32c(page.subspan(part * part_bytes, part_bytes));
  return crcs;
}

}  // namespace everlong::store

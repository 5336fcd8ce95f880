#include "export_chunks.h"

#include <fcntl.h>

#include <array>
#include <cstring>

#include "everlong/base/crc32c.h"

namespace everlong::store {
namespace {

constexpr std::string_view kMagic = "EVLEXPRT";
// Version 1 had no kFile. Version 2 had no kNode, no kEdge and no role of a block, and had tensors of format 1's kinds.
constexpr uint32_t kExportVersion = 3;
constexpr size_t kPreambleBytes = 16;     // magic, version, zero
constexpr size_t kChunkHeaderBytes = 16;  // type, checksum, length of the body

uint32_t ChunkChecksum(Chunk type, std::span<const std::byte> body) {
  const auto number = static_cast<uint32_t>(type);
  const uint64_t length = body.size();
  uint32_t crc = Crc32c(std::as_bytes(std::span(&number, 1)));
  crc = Crc32c(std::as_bytes(std::span(&length, 1)), crc);
  return Crc32c(body, crc);
}

}  // namespace

Result<ExportWriter> ExportWriter::Create(const std::filesystem::path& path) {
  Result<UniqueFd> file = OpenFile(path, O_RDWR | O_CREAT | O_EXCL);
  EVERLONG_RETURN_IF_ERROR(file.status());
  ExportWriter writer(std::move(file).value(), path);
  std::array<std::byte, kPreambleBytes> preamble = {};
  std::memcpy(preamble.data(), kMagic.data(), kMagic.size());
  std::memcpy(preamble.data() + kMagic.size(), &kExportVersion, sizeof kExportVersion);
  const std::span<const std::byte> piece = preamble;
  Status written = WriteAt(writer.file_, path, 0, std::span(&piece, 1));
  writer.end_ = kPreambleBytes;
  if (written.ok()) return writer;
  static_cast<void>(RemoveFile(path));
  return written;
}

Status ExportWriter::Write(Chunk type, std::span<const std::byte> body) {
  const auto number = static_cast<uint32_t>(type);
  const uint32_t crc = ChunkChecksum(type, body);
  const uint64_t length = body.size();
  std::array<std::byte, kChunkHeaderBytes> header = {};
  std::memcpy(header.data(), &number, sizeof number);
  std::memcpy(header.data() + 4, &crc, sizeof crc);
  std::memcpy(header.data() + 8, &length, sizeof length);
  const std::array<std::span<const std::byte>, 2> pieces = {header, body};
  EVERLONG_RETURN_IF_ERROR(WriteAt(file_, path_, end_, pieces));
  end_ += static_cast<int64_t>(kChunkHeaderBytes + body.size());
  return OkStatus();
}

Status ExportWriter::Finish() {
  EVERLONG_RETURN_IF_ERROR(SyncFile(file_, path_));
  return SyncFolder(path_.parent_path());
}

Result<ExportReader> ExportReader::Begin(const std::filesystem::path& path) {
  EVERLONG_ASSIGN_OR_RETURN(UniqueFd file, OpenFile(path, O_RDONLY));
  EVERLONG_ASSIGN_OR_RETURN(const int64_t size, FileSize(file, path));
  EVERLONG_RETURN_IF_ERROR(RequireOnDisk(file, path, 0, size));
  ExportReader reader(std::move(file), path, size);
  std::array<std::byte, kPreambleBytes> preamble = {};
  EVERLONG_ASSIGN_OR_RETURN(const int64_t count, ReadAt(reader.file_, path, 0, preamble));
  uint32_t version = 0;
  std::memcpy(&version, preamble.data() + kMagic.size(), sizeof version);
  if (count != kPreambleBytes || std::memcmp(preamble.data(), kMagic.data(), kMagic.size()) != 0) {
    return reader.Corrupt("it is no exported memory");
  }
  if (version > kExportVersion) {
    return NewerFormatError("exported memory '" + path.string() + "' has format " + std::to_string(version) +
                            "; this everlong reads up to " + std::to_string(kExportVersion) + ": update it");
  }
  if (version == 0) return reader.Corrupt("it has format " + std::to_string(version));
  reader.at_ = kPreambleBytes;
  reader.version_ = version;
  return reader;
}

Result<ExportReader::Piece> ExportReader::Next() {
  std::array<std::byte, kChunkHeaderBytes> header = {};
  EVERLONG_ASSIGN_OR_RETURN(const int64_t count, ReadAt(file_, path_, at_, header));
  uint32_t type = 0;
  uint32_t crc = 0;
  uint64_t length = 0;
  std::memcpy(&type, header.data(), sizeof type);
  std::memcpy(&crc, header.data() + 4, sizeof crc);
  std::memcpy(&length, header.data() + 8, sizeof length);
  const int64_t begin = at_ + static_cast<int64_t>(kChunkHeaderBytes);
  if (count != kChunkHeaderBytes || length > static_cast<uint64_t>(size_ - begin)) {
    return Corrupt("it is cut short at byte " + std::to_string(at_));
  }
  Piece piece{static_cast<Chunk>(type), std::vector<std::byte>(static_cast<size_t>(length))};
  EVERLONG_ASSIGN_OR_RETURN(const int64_t read, ReadAt(file_, path_, begin, piece.body));
  if (read != static_cast<int64_t>(length) || ChunkChecksum(piece.type, piece.body) != crc) {
    return Corrupt("checksum mismatch at byte " + std::to_string(at_));
  }
  at_ = begin + static_cast<int64_t>(length);
  return piece;
}

Status ExportReader::Corrupt(const std::string& what) const {
  return CorruptError("exported memory '" + path_.string() + "': " + what);
}

}  // namespace everlong::store

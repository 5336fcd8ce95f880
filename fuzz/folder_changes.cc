#include "folder_changes.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "everlong/base/crc32c.h"

namespace everlong::fuzz {
namespace {

namespace fs = std::filesystem;

// Names that a memory may have, besides those that this one has.
constexpr std::array kNames = {"LOCK",
                               "manifest.json.tmp",
                               "catalog.sqlite-wal",
                               "catalog.sqlite-shm",
                               "catalog.sqlite-journal",
                               "segments",
                               "segments/000001.kvseg",
                               "segments/000002.kvseg",
                               "segments/000009.kvseg",
                               "segments/000002.kvseg.tmp",
                               "segments/2147483647.kvseg",
                               "segments/0000000000002.kvseg",
                               "files",
                               "files/other",
                               "files/note.tmp",
                               "files/Other",
                               "index",
                               "index/heads",
                               "index/lexical",
                               "index/hnsw",
                               "index/mean_pool",
                               "index/embedding",
                               "index/meaning",
                               "index/heads.blocks",
                               "index/embedding.blocks",
                               "index/heads.1.2.writing",
                               "more"};

std::string Name(Choices& choices, const GoodMemory& memory) {
  if (choices.ConsumeBool()) return choices.PickValueInArray(kNames);
  auto file = memory.files.begin();
  std::advance(file, choices.ConsumeIntegralInRange<size_t>(0, memory.files.size() - 1));
  return file->first;
}

// Numbers that a field of bytes may become.
constexpr std::array<uint64_t, 22> kNumbers = {0,
                                               1,
                                               2,
                                               7,
                                               255,
                                               4096,
                                               65535,
                                               65536,
                                               0x7FFFFFFF,
                                               0x80000000,
                                               0xFFFFFFFF,
                                               0x100000000,
                                               uint64_t{1} << 36,
                                               uint64_t{1} << 40,
                                               uint64_t{1} << 60,
                                               uint64_t{1} << 62,
                                               0x7FFFFFFFFFFFFFFF,
                                               0x8000000000000000,
                                               0xFFFFFFFFFFFFFFFF,
                                               0x7FC00000,
                                               0x7F800000,
                                               0x7FF0000000000000};

// --- bytes of a file

void ChangeBytes(Choices& choices, std::string& bytes) {
  for (int left = choices.ConsumeIntegralInRange(1, 4); left > 0 && !bytes.empty(); --left) {
    // Anywhere, or in a field near a place where something begins or ends.
    const auto near = choices.ConsumeIntegralInRange<size_t>(0, 127);
    size_t at = near;
    switch (choices.ConsumeIntegralInRange(0, 3)) {
      case 0:
        at = choices.ConsumeIntegralInRange<size_t>(0, bytes.size() - 1);
        break;
      case 1:
        at = bytes.size() - std::min(bytes.size(), near + 1);
        break;
      case 2:
        at = 4096 * choices.ConsumeIntegralInRange<size_t>(0, bytes.size() / 4096) + near;
        break;
      default:
        break;
    }
    at = std::min(at, bytes.size() - 1);
    const size_t width = std::min(bytes.size() - at, size_t{1} << choices.ConsumeIntegralInRange(0, 3));
    uint64_t number = 0;
    std::memcpy(&number, bytes.data() + at, width);
    switch (choices.ConsumeIntegralInRange(0, 3)) {
      case 0:
        number ^= uint64_t{1} << choices.ConsumeIntegralInRange(0, 63);
        break;
      case 1:
        number += choices.ConsumeIntegralInRange<uint64_t>(0, 16) - 8;
        break;
      case 2:
        number = choices.ConsumeIntegral<uint64_t>();
        break;
      default:
        number = choices.PickValueInArray(kNumbers);
    }
    std::memcpy(bytes.data() + at, &number, width);
  }
}

// Give a saved index the checksums that it should have: its own, and that of what it carries (index/index_file.h).
void RightIndex(std::string& bytes) {
  constexpr size_t kTail = 32;
  const auto put = [&bytes](size_t first, size_t at) {
    const uint32_t crc = Crc32c(std::as_bytes(std::span(bytes)).subspan(first, at - first));
    std::memcpy(bytes.data() + at, &crc, sizeof crc);
  };
  size_t end = bytes.size();
  if (bytes.size() >= kTail) {
    uint64_t own = 0;
    std::memcpy(&own, bytes.data() + bytes.size() - kTail, sizeof own);
    if (own >= 4 && own <= bytes.size() - kTail) end = own;
  }
  if (end < 4) return;
  put(0, end - 4);
  if (end < bytes.size()) put(end - 4, bytes.size() - 4);
}

void RightManifest(std::string& text) {
  constexpr std::string_view kOpening = "{\n  \"crc32c\": \"";
  if (!text.starts_with(kOpening) || text.size() < kOpening.size() + 8) return;
  text.replace(kOpening.size(), 8, "00000000");
  const uint32_t crc = Crc32c(std::as_bytes(std::span(text)));
  for (size_t i = 0; i < 8; ++i) text[kOpening.size() + i] = "0123456789abcdef"[(crc >> (28 - 4 * i)) & 15U];
}

void RightFile(const fs::path& folder, const std::string& name, std::string& bytes) {
  if (name.starts_with("index/")) RightIndex(bytes);
  if (name.starts_with("manifest")) RightManifest(bytes);
  PutBytes(folder / name, bytes);
  if (name.starts_with("segments/")) RightRecords(folder);
}

void ChangeFile(Choices& choices, const fs::path& folder, const GoodMemory& memory) {
  const std::string name = Name(choices, memory);
  std::optional<std::string> bytes = OwnBytes(folder / name);
  if (!bytes) return;
  ChangeBytes(choices, *bytes);
  PutBytes(folder / name, *bytes);
  if (choices.ConsumeIntegralInRange(0, 3) != 0) RightFile(folder, name, *bytes);
}

void ResizeFile(Choices& choices, const fs::path& folder, const GoodMemory& memory) {
  const std::string name = Name(choices, memory);
  std::optional<std::string> bytes = OwnBytes(folder / name);
  if (!bytes) return;
  std::error_code ignored;
  switch (choices.ConsumeIntegralInRange(0, 7)) {
    case 0:
      bytes->clear();
      break;
    case 1: {  // with holes: a small archive of a folder can hold such a file
      const int bits = choices.ConsumeIntegralInRange(20, 62);
      // A file of some hundred megabytes that is read and copied in several uses is no fault, but passes the limit.
      fs::resize_file(folder / name, uint64_t{1} << (bits < 30 ? bits % 4 + 18 : bits), ignored);
      return;
    }
    case 2:
      *bytes += *bytes;
      break;
    case 3:
      bytes->append(size_t{1} << choices.ConsumeIntegralInRange(0, 20), choices.ConsumeBool() ? '\0' : 'x');
      break;
    case 4:
      bytes->resize(bytes->size() / 2);
      break;
    default:
      bytes->resize(bytes->size() - std::min<size_t>(bytes->size(), choices.ConsumeIntegralInRange(1, 200)));
  }
  PutBytes(folder / name, *bytes);
  if (choices.ConsumeBool()) RightFile(folder, name, *bytes);
}

// --- the manifest

constexpr std::array kTexts = {"0",
                               "1",
                               "-1",
                               "2",
                               "3",
                               "64",
                               "128",
                               "65536",
                               "1048576",
                               "2147483647",
                               "2147483648",
                               "-2147483648",
                               "4294967296",
                               "9223372036854775807",
                               "1e5",
                               "1.5",
                               "\"\"",
                               "\"fp32\"",
                               "\"bf16\"",
                               "\"e4m3\"",
                               "\"e5m2\"",
                               "\"graph\"",
                               "null",
                               "\"encoder e\\n8 2\"",
                               "\"keys\\n8 2\"",
                               "\"time\"",
                               "\"encoder encoder\\n5 1\"",
                               "\"encoder \\n2147483647 9\"",
                               "[]",
                               "{}",
                               "true",
                               "\"\\u0000\"",
                               "\"\\ud800\""};

// A number or a text of it becomes another; an attribute comes, too.
void ChangeManifest(Choices& choices, const fs::path& folder) {
  std::optional<std::string> text = OwnBytes(folder / "manifest.json");
  if (!text) return;
  for (int left = choices.ConsumeIntegralInRange(1, 2); left > 0; --left) {
    const std::string with = choices.PickValueInArray(kTexts);
    std::vector<std::pair<size_t, size_t>> words;  // begin and end
    for (size_t at = text->find(',') + 1; at < text->size();) {
      const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.'; };
      size_t end = at + 1;
      if ((*text)[at] == '"') {
        for (; end < text->size() && ((*text)[end] != '"' || (*text)[end - 1] == '\\'); ++end) {
        }
        words.emplace_back(at, std::min(++end, text->size()));
      } else if (is_word((*text)[at])) {
        while (end < text->size() && is_word((*text)[end])) ++end;
        words.emplace_back(at, end);
      }
      at = end;
    }
    if (words.empty()) return;
    const auto [begin, end] = words[choices.ConsumeIntegralInRange<size_t>(0, words.size() - 1)];
    text->replace(begin, end - begin, with);
  }
  RightManifest(*text);
  PutBytes(folder / "manifest.json", *text);
}

// --- names

void Remove(const fs::path& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

void CopyOver(Choices& choices, const fs::path& folder, const GoodMemory& memory) {
  const auto& memories = GoodMemories();
  const GoodMemory& other = memories[choices.ConsumeIntegralInRange<size_t>(0, memories.size() - 1)];
  const GoodMemory& from = choices.ConsumeBool() ? memory : other;
  auto file = from.files.begin();
  std::advance(file, choices.ConsumeIntegralInRange<size_t>(0, from.files.size() - 1));
  const std::string name = choices.ConsumeBool() ? file->first : Name(choices, memory);
  if (fs::exists(fs::symlink_status(folder / name)) && !OwnBytes(folder / name)) return;
  // A link above it leads out of the folder.
  if (fs::is_directory(fs::symlink_status((folder / name).parent_path()))) PutBytes(folder / name, file->second);
}

void Rename(Choices& choices, const fs::path& folder, const GoodMemory& memory) {
  const std::string name = Name(choices, memory);
  const std::string other = Name(choices, memory);
  if (!fs::is_directory(fs::symlink_status((folder / name).parent_path())) ||
      !fs::is_directory(fs::symlink_status((folder / other).parent_path()))) {
    return;
  }
  std::error_code ignored;
  if (choices.ConsumeBool()) {
    Remove(folder / name);
  } else if (choices.ConsumeBool()) {
    fs::rename(folder / name, folder / other, ignored);
  } else {  // swapped
    fs::rename(folder / name, folder / "swapped", ignored);
    fs::rename(folder / other, folder / name, ignored);
    fs::rename(folder / "swapped", folder / other, ignored);
  }
}

// Something that is no file of the memory's own, in the place of one.
void PutOther(Choices& choices, const fs::path& folder, const GoodMemory& memory, const fs::path& outside) {
  const std::string name = Name(choices, memory);
  const fs::path place = folder / name;
  if (!fs::is_directory(fs::symlink_status(place.parent_path()))) return;
  Remove(place);
  std::error_code ignored;
  switch (choices.ConsumeIntegralInRange(0, 7)) {
    case 0:
      fs::create_symlink(outside / "file", place, ignored);
      break;
    case 1:
      fs::create_symlink(outside / "memory" / name, place, ignored);
      break;
    case 2:
      fs::create_hard_link(outside / "file", place, ignored);
      break;
    case 3:
      fs::create_hard_link(outside / "memory" / name, place, ignored);
      break;
    case 4:
      ::mkfifo(place.c_str(), 0600);
      break;
    case 5:
      fs::create_directory(place, ignored);
      break;
    case 6:
      fs::create_symlink(choices.ConsumeBool() ? place : outside / "memory", place, ignored);
      break;
    default:
      fs::create_hard_link(folder / Name(choices, memory), place, ignored);
  }
}

// A rollback journal that SQLite plays back, and that names a file to remove; or a log of somebody else's.
void PutJournal(Choices& choices, const fs::path& folder, const fs::path& outside) {
  const fs::path catalog = folder / "catalog.sqlite";
  constexpr std::array kSuffixes = {"-journal", "-wal", "-shm"};
  const fs::path journal = catalog.string() + choices.PickValueInArray(kSuffixes);
  if (fs::exists(fs::symlink_status(journal)) && !OwnBytes(journal)) return;
  if (choices.ConsumeBool()) {
    PutBytes(journal, choices.ConsumeRandomLengthString(200));
    return;
  }
  const std::optional<std::string> bytes = OwnBytes(catalog);
  if (!bytes || bytes->size() < 100) return;
  const auto big = [](uint32_t number) {
    return std::string{static_cast<char>(number >> 24U), static_cast<char>(number >> 16U),
                       static_cast<char>(number >> 8U), static_cast<char>(number)};
  };
  const std::string magic = "\xd9\xd5\x05\xf9\x20\xa1\x63\xd7";
  const std::string name = (outside / "file").string();
  uint32_t sum = 0;
  for (const char letter : name) sum += static_cast<uint32_t>(letter);
  const uint32_t page =
      (static_cast<uint32_t>(static_cast<uint8_t>((*bytes)[16])) << 8U) + static_cast<uint8_t>((*bytes)[17]);
  if (page < 512) return;
  std::string hot = magic + big(choices.ConsumeIntegralInRange<uint32_t>(0, 1)) + big(0) +
                    big(static_cast<uint32_t>(bytes->size()) / page) + big(512) + big(page);
  hot.resize(512, '\0');
  if (choices.ConsumeBool()) hot += big(1) + bytes->substr(0, page) + big(0);
  hot += big(0x40000000 / page + 1) + name + big(static_cast<uint32_t>(name.size())) + big(sum) + magic;
  PutBytes(journal, hot);
}

}  // namespace

void ChangeFolder(Choices& choices, const fs::path& folder, const GoodMemory& memory, const fs::path& outside) {
  // What is behind a link to a folder is not ours to change.
  for (const char* const inside : {"segments", "files", "index"}) {
    if (fs::is_symlink(fs::symlink_status(folder / inside))) return;
  }
  switch (choices.ConsumeIntegralInRange(0, 15)) {
    case 0:
    case 1:
    case 2:
      ChangeRows(choices, folder);
      break;
    case 3:
    case 4:
    case 5:
    case 6:
      ChangeRows(choices, folder);
      RightRows(folder);
      break;
    case 7:
    case 8:
      ChangeFile(choices, folder, memory);
      break;
    case 9:
      ResizeFile(choices, folder, memory);
      break;
    case 10:
      ChangeManifest(choices, folder);
      break;
    case 11:
      CopyOver(choices, folder, memory);
      break;
    case 12:
      Rename(choices, folder, memory);
      break;
    case 13:
      PutOther(choices, folder, memory, outside);
      break;
    case 14:
      PutJournal(choices, folder, outside);
      break;
    default:
      RightRecords(folder);
  }
}

}  // namespace everlong::fuzz

// Changes of a catalog by SQL, as another program makes them.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>

#include <filesystem>

namespace everlong::fuzz {

// What an input decides, one after the other; zeros once it is used up.
using Choices = FuzzedDataProvider;

// Change up to three rows, the schema or a number of the header. Nothing happens where the catalog is none, or where
// SQLite could reach a file outside of the folder.
void ChangeRows(Choices& choices, const std::filesystem::path& folder);

// Give every row the checksum that it should have, which no fuzzer guesses.
void RightRows(const std::filesystem::path& folder);
// The same, and before it the checksums of token ids, of records and of their parts.
void RightRecords(const std::filesystem::path& folder);

}  // namespace everlong::fuzz

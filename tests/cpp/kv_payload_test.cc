#include <gtest/gtest.h>

#include "everlong/kv/payload.h"
#include "kv_reference.h"

namespace everlong::kv {
namespace {

TEST(Payload, CodecNamesParseBack) {
  for (const Codec codec : reference::AllCodecs()) {
    ASSERT_TRUE(ParseCodec(CodecName(codec)).ok());
    EXPECT_EQ(*ParseCodec(CodecName(codec)), codec);
  }
  const Status unknown = ParseCodec("int3").status();
  EXPECT_EQ(unknown.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.message().find("\"int3\""), std::string::npos) << unknown.message();
}

TEST(Payload, SizesFollowTheFormat) {
  const PayloadLayout bf16{Codec::kBFloat16, 3, 2, 8, 64};
  EXPECT_EQ(bf16.PartBytes(64), 2 * 2 * 64 * 8 * 2);
  EXPECT_EQ(bf16.PageBytes(5), 3 * 2 * 2 * 5 * 8 * 2);
  const PayloadLayout e4m3{Codec::kE4M3, 3, 2, 8, 64};
  EXPECT_EQ(e4m3.PartBytes(5), 2 * (2 * 5 * 8) + 4 * (2 * 8) + 4 * (2 * 5) + 2 * (2 * 8));
  const PayloadLayout plain{Codec::kPlainE4M3, 3, 2, 8, 64};
  EXPECT_EQ(plain.PartBytes(5), 2 * (2 * 5 * 8) + 4 * (2 * 8) + 4 * (2 * 5));
  // Rows of 21 codes in 5 and in 4 bits, channels, and one group a token. Rows of 70 have two groups.
  EXPECT_EQ((PayloadLayout{Codec::kK5V4, 3, 2, 21, 64}).PartBytes(5), 2 * 5 * (14 + 11) + 4 * 2 * 21 + 4 * 2 * 5);
  EXPECT_EQ((PayloadLayout{Codec::kInt6, 3, 2, 70, 64}).PartBytes(5), 2 * 5 * 2 * 53 + 4 * 2 * 70 + 4 * 2 * 5 * 2);
  EXPECT_EQ((PayloadLayout{Codec::kE5M2, 3, 2, 8, 64}).PartBytes(5), e4m3.PartBytes(5));
  EXPECT_EQ(e4m3.BlockBytes(64 * 2 + 5), 2 * e4m3.PageBytes(64) + e4m3.PageBytes(5));
  EXPECT_EQ(e4m3.BlockBytes(0), 0);
  EXPECT_EQ(e4m3.PageCount(0), 0);
  EXPECT_EQ(e4m3.PageCount(64), 1);
  EXPECT_EQ(e4m3.PageCount(65), 2);
  EXPECT_EQ(e4m3.PageTokens(65, 0), 64);
  EXPECT_EQ(e4m3.PageTokens(65, 1), 1);
}

TEST(Payload, SizesDoNotOverflow) {
  const PayloadLayout wide{Codec::kFloat32, 128, 128, 512, 128};
  EXPECT_EQ(wide.BlockBytes(int64_t{1} << 20), (int64_t{1} << 20) * 128 * 128 * 512 * 2 * 4);
}

TEST(Payload, EverySizeMustBePositive) {
  EXPECT_TRUE(Validate(PayloadLayout{Codec::kE4M3, 1, 1, 1, 1}).ok());
  for (const PayloadLayout& wrong :
       {PayloadLayout{Codec::kE4M3, 0, 1, 8, 64}, PayloadLayout{Codec::kE4M3, 1, -1, 8, 64},
        PayloadLayout{Codec::kE4M3, 1, 1, 0, 64}, PayloadLayout{Codec::kE4M3, 1, 1, 8, 0}}) {
    EXPECT_EQ(Validate(wrong).code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace everlong::kv

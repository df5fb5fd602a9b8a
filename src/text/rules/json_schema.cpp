#include "text/rules/json_schema.h"

#include <utility>

#include "text/rules/schema_compiler.h"

namespace faststream::rules {

Grammar parse_json_schema(std::string_view schema) {
  SchemaDocument document(schema);
  return SchemaCompiler(document).compile();
}

}  // namespace faststream::rules

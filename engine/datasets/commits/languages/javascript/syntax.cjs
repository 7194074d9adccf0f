// Reads JavaScript with the parser inside of Node.js; nothing of it is executed. Run in a sandbox.
//
//     node --expose-internals syntax.cjs INPUT OUTPUT
//
// INPUT is {"entities": [OLD, NEW]} or {"example": [TEXT, TITLE]}; OUTPUT is {"added", "removed", "changed"},
// {"example"}, or {"error"} where a text is no JavaScript.
'use strict'

const fs = require('node:fs')
const { parse } = require('internal/deps/acorn/acorn/dist/acorn')

const MAX_NAME = 200
const MODULE = '<module>'
const TESTS = new Set(['it', 'test', 'specify'])
const SUITES = new Set(['describe', 'context', 'suite'])
const PARAMETERS = new Set(['done', 't', 'st', 'assert'])
const GLOBALS = new Set([...Object.getOwnPropertyNames(globalThis), 'require', 'module', 'exports',
  '__dirname', '__filename', 'arguments'])

function parsed (text) {
  const options = { ecmaVersion: 'latest', allowHashBang: true, allowReturnOutsideFunction: true }
  try {
    return parse(text, { ...options, sourceType: 'module' })
  } catch (error) {
    return parse(text, { ...options, sourceType: 'script' })
  }
}

// --- Entities: name → code without positions, comments and quotes ---

function code (node) {
  return JSON.stringify(node, (key, value) => {
    if (key === 'start' || key === 'end' || key === 'raw') return undefined
    if (typeof value === 'bigint') return `${value}n`
    return value
  })
}

function nameOf (node) {
  if (!node) return ''
  if (node.type === 'Identifier' || node.type === 'PrivateIdentifier') return node.name
  if (node.type === 'Literal') return String(node.value)
  if (node.type === 'ThisExpression') return 'this'
  if (node.type === 'MemberExpression') {
    const [object, property] = [nameOf(node.object), nameOf(node.property)]
    return object && property && (!node.computed || node.property.type === 'Literal')
      ? `${object}.${property}` : ''
  }
  return ''
}

const isFunction = (node) => node && /^(Arrow)?Function(Expression|Declaration)$/.test(node.type)
const isClass = (node) => node && /^Class(Expression|Declaration)$/.test(node.type)

function entities (text) {
  const codes = new Map()

  function add (name, node) {
    const key = name.slice(0, MAX_NAME)
    codes.set(key, [...(codes.get(key) || []), code(node)])
  }

  // Adds the entity behind a name and returns whether there is one.
  function named (name, node) {
    if (!name) return false
    if (isFunction(node)) {
      add(name, node)
    } else if (isClass(node)) {
      for (const member of node.body.body) {
        const inner = nameOf(member.key)
        if (isFunction(member.value) && inner && !member.computed) add(`${name}.${inner}`, member)
        else add(name, member)
      }
      add(name, [node.superClass])
    } else if (node && node.type === 'AssignmentExpression') { // exports.a = b = function () {}
      return named(name, node.right)
    } else if (node && node.type === 'ObjectExpression') {
      const left = node.properties.filter((item) => item.computed || !named(
        item.key ? `${name}.${nameOf(item.key)}` : '', item.value))
      if (left.length === node.properties.length) return false
      if (left.length) add(name, left)
    } else {
      return false
    }
    return true
  }

  function statement (node) {
    const inner = /^Export(Named|Default)Declaration$/.test(node.type) ? node.declaration : node
    if (!inner) return add(MODULE, node)
    if (isFunction(inner) || isClass(inner)) return named(nameOf(inner.id) || 'default', inner)
    if (inner.type === 'VariableDeclaration') {
      for (const item of inner.declarations) named(nameOf(item.id), item.init) || add(MODULE, item)
    } else if (inner.type === 'ExpressionStatement' && inner.expression.type === 'AssignmentExpression') {
      named(nameOf(inner.expression.left), inner.expression.right) || add(MODULE, inner)
    } else {
      add(MODULE, node)
    }
  }

  parsed(text).body.forEach(statement)
  return codes
}

function compare (old, now) {
  const [before, after] = [entities(old), entities(now)]
  const same = (name) => before.get(name).join('\n') === after.get(name).join('\n')
  return {
    added: [...after.keys()].filter((name) => !before.has(name)),
    removed: [...before.keys()].filter((name) => !after.has(name)),
    changed: [...after.keys()].filter((name) => before.has(name) && !same(name))
  }
}

// --- Example: the body of a test, with the declarations of its file that it needs ---

function children (node) {
  return Object.entries(node).flatMap(([key, value]) => [].concat(value)
    .filter((child) => child && typeof child.type === 'string').map((child) => [key, child]))
}

// Returns the callback of a test by its own title, or by those of its suites and its own.
function find (node, title, isOwn, prefix = '') {
  let titles = prefix
  if (node.type === 'CallExpression' && node.arguments[0]) {
    const name = nameOf(node.callee).split('.')
    const isTest = TESTS.has(name[0]) || TESTS.has(name[name.length - 1])
    const callback = node.arguments.findLast(isFunction)
    const own = node.arguments[0].value
    if (callback && typeof own === 'string' && (isTest || SUITES.has(name[0]))) {
      titles = prefix ? `${prefix} ${own}` : own
      if (isTest && (isOwn ? own : titles) === title) return callback
    }
  }
  for (const [, child] of children(node)) {
    const found = find(child, title, isOwn, titles)
    if (found) return found
  }
  return null
}

function names (node, used, defined) {
  for (const [key, child] of children(node)) {
    if (child.type === 'Identifier') {
      const isName = (key === 'property' && !node.computed) || key === 'label' ||
        (key === 'key' && !node.computed && !node.shorthand)
      const declares = key === 'params' || key === 'imported' || key === 'local' || key === 'param' ||
        (key === 'id' && /Declarat|Function|Class/.test(node.type))
      if (declares) defined.add(child.name)
      else if (!isName) used.add(child.name)
    } else if (/Pattern$/.test(child.type) && ['id', 'params', 'left', 'value', 'elements', 'param'].includes(key)) {
      patterns(child, defined)
      names(child, used, defined)
    } else {
      names(child, used, defined)
    }
  }
}

function patterns (node, defined) {
  for (const [key, child] of children(node)) {
    if (child.type === 'Identifier' && key !== 'key' && key !== 'right') defined.add(child.name)
    else if (key !== 'right') patterns(child, defined)
  }
}

function example (text, title) {
  const tree = parsed(text)
  const callback = find(tree, title, false) || find(tree, title, true)
  if (!callback || callback.body.type !== 'BlockStatement' || !callback.body.body.length) return ''
  if (!callback.params.every((parameter) => PARAMETERS.has(parameter.name))) return ''
  const declarations = new Map()
  for (const statement of tree.body) {
    const inner = statement.declaration || statement
    const items = inner.type === 'VariableDeclaration' ? inner.declarations : [inner]
    const defined = new Set()
    for (const item of items) {
      if (item.type === 'VariableDeclarator' && !item.init) continue
      if (/Declarat/.test(item.type)) names({ item: { ...item, body: null, init: null } }, new Set(), defined)
    }
    for (const name of defined) declarations.set(name, statement)
  }
  const needed = new Set()
  const pending = [callback]
  while (pending.length) {
    const [used, defined] = [new Set(), new Set()]
    names({ body: pending.pop() }, used, defined)
    for (const name of used) {
      if (defined.has(name) || GLOBALS.has(name)) continue
      const declaration = declarations.get(name)
      if (!declaration) return ''
      if (!needed.has(declaration)) pending.push(declaration)
      needed.add(declaration)
    }
  }
  const parts = tree.body.filter((node) => needed.has(node)).map((node) => text.slice(node.start, node.end))
  return [...parts, '', dedented(text, callback.body.body)].join('\n').trim()
}

function dedented (text, statements) {
  const first = text.lastIndexOf('\n', statements[0].start) + 1
  const lines = text.slice(first, statements[statements.length - 1].end).split('\n')
  const depths = lines.filter((line) => line.trim()).map((line) => line.length - line.trimStart().length)
  if (text.slice(first, statements[0].start).trim()) {
    return text.slice(statements[0].start, statements[statements.length - 1].end)
  }
  return lines.map((line) => line.slice(Math.min(...depths))).join('\n')
}

function main (input, output) {
  const request = JSON.parse(fs.readFileSync(input, 'utf8'))
  let result
  try {
    result = request.entities ? compare(...request.entities) : { example: example(...request.example) }
  } catch (error) {
    if (!(error instanceof SyntaxError || error instanceof RangeError)) throw error
    result = { error: String(error.message) }
  }
  fs.writeFileSync(output, JSON.stringify(result))
}

main(process.argv[2], process.argv[3])
